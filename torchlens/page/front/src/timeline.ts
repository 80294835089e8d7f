// The capture as it stood after so many of its events.
//
// Rule  A row exists once the number of its event is below the position; one without an event exists from the start,
//       except that a firing without one is never shown as fired: the events of its pass are not in the stream.

import { type Model, pushTo } from "./model";
import type { Maybe, Text } from "./data";

export type HappeningKind = "op" | "entered" | "left" | "begun" | "ended" | "fired" | "gradient";

/** An event that brought about a row. */
export interface Happening {
  event: number;
  kind: HappeningKind;
  row: number;
}

export class Timeline {
  readonly count: number;
  /** All happenings, in order. */
  readonly happenings: Happening[] = [];
  private readonly events: Float64Array;
  private readonly ranAt: Float64Array;
  private readonly firedAt: Float64Array;
  private readonly gradientAt: Float64Array;
  private readonly firingsOfOp = new Map<number, number[]>();

  constructor(private readonly model: Model) {
    const { ops, calls, passes, firings, gradients, events } = model.data;
    this.count = events.count;
    const add = (kind: HappeningKind, column: Maybe[]): void => {
      column.forEach((event, row) => {
        if (event !== null && event >= 0 && event < this.count) this.happenings.push({ event, kind, row });
      });
    };
    add("begun", passes.begun);
    add("entered", calls.entered);
    add("op", ops.event);
    add("fired", firings.event);
    add("gradient", gradients.event);
    add("left", calls.left);
    add("ended", passes.ended);
    this.happenings.sort((a, b) => a.event - b.event);
    this.events = Float64Array.from(this.happenings, (one) => one.event);
    this.ranAt = sorted(ops.event.filter((_, op) => model.isComputing(op)));
    this.firedAt = sorted(firings.event);
    this.gradientAt = sorted(gradients.event);
    firings.op.forEach((op, row) => {
      if (op < 0 || firings.event[row] === null) return;
      pushTo(this.firingsOfOp, op, row);
    });
  }

  /** Whether a row with this event is there at a position. */
  static is(event: Maybe | undefined, position: number): boolean {
    return event === null || event === undefined || event < position;
  }

  isRunning(call: number, position: number): boolean {
    const { entered, left } = this.model.data.calls;
    const end = left[call];
    return Timeline.is(entered[call], position) && (end === null || end === undefined || end >= position) && position < this.count;
  }

  /** Module calls entered and not left, from the outermost. */
  running(position: number): number[] {
    const { entered, left } = this.model.data.calls;
    const found: number[] = [];
    for (let call = 0; call < entered.length; call++) {
      const end = left[call];
      if (entered[call] !== null && entered[call]! < position && (end === null || end === undefined || end >= position)) {
        found.push(call);
      }
    }
    return found;
  }

  /** The pass that was begun last; -1 before the first. */
  pass(position: number): number {
    const { begun } = this.model.data.passes;
    let found = -1;
    for (let row = 0; row < begun.length; row++) {
      const event = begun[row];
      if (event !== null && event !== undefined && event < position && (found < 0 || event >= begun[found]!)) found = row;
    }
    return found;
  }

  numRun(position: number): number {
    return below(this.ranAt, position) + this.model.numOpsIn(this.model.root) - this.ranAt.length;
  }

  numFired(position: number): number {
    return below(this.firedAt, position);
  }

  numGradients(position: number): number {
    return below(this.gradientAt, position) + this.model.data.gradients.event.length - this.gradientAt.length;
  }

  /** Rows of the firings that have been, in order. */
  fired(position: number, pass?: number): number[] {
    const { firings } = this.model.data;
    const found: number[] = [];
    firings.event.forEach((event, row) => {
      if (event !== null && event < position && (pass === undefined || firings.pass[row] === pass)) found.push(row);
    });
    return found.sort((a, b) => firings.event[a]! - firings.event[b]!);
  }

  gradients(position: number): number[] {
    const { event } = this.model.data.gradients;
    const found: number[] = [];
    for (let row = 0; row < event.length; row++) if (Timeline.is(event[row], position)) found.push(row);
    return found;
  }

  /** Whether a node of an op has fired in a pass. */
  hasFired(op: number, position: number, pass: number): boolean {
    const { event, pass: of } = this.model.data.firings;
    return this.firingsOfOp.get(op)?.some((row) => event[row]! < position && of[row] === pass) ?? false;
  }

  hasRun(op: number, position: number): boolean {
    return Timeline.is(this.model.data.ops.event[op], position);
  }

  hasGradient(op: number, position: number): boolean {
    const { event } = this.model.data.gradients;
    return this.model.gradientsOfOp[op]!.some((row) => Timeline.is(event[row], position));
  }

  /** Position among the happenings of the last one at a position; -1 before the first. */
  lastAt(position: number): number {
    return below(this.events, position) - 1;
  }

  /** What the last event brought about; empty where it brought about no row. */
  at(position: number): Happening[] {
    const found: Happening[] = [];
    for (let at = this.lastAt(position); at >= 0 && this.events[at] === position - 1; at--) {
      found.unshift(this.happenings[at]!);
    }
    return found;
  }

  /** The position behind the next, or the last earlier, event that brought something about. */
  beside(position: number, way: 1 | -1): number {
    let at = this.lastAt(position);
    if (way > 0) at++;
    else {
      while (at >= 0 && this.events[at]! >= position - 1) at--;
      if (at < 0) return 0;
    }
    return at < this.events.length ? this.events[at]! + 1 : this.count;
  }

  /** What a happening is of: an op or a group, of a parameter the op that used it; -1 for nothing that is shown. */
  subject(one: Happening): number {
    const { firings, gradients } = this.model.data;
    switch (one.kind) {
      case "op":
        return one.row;
      case "entered":
      case "left":
        return this.model.numOps + one.row;
      case "fired":
        return firings.op[one.row]! >= 0 ? firings.op[one.row]! : this.userOf(firings.param?.[one.row]);
      case "gradient":
        return gradients.op[one.row]! >= 0 ? gradients.op[one.row]! : this.userOf(gradients.param[one.row]);
      case "begun":
        return -1;
      case "ended":
        return this.model.failedPasses.includes(one.row) ? (this.model.data.passes.op?.[one.row] ?? -1) : -1;
    }
  }

  /** The op that first used a parameter; -1 where none did. */
  private userOf(param: Text | undefined): number {
    return this.model.opsOfParam.get(this.model.text(param))?.[0] ?? -1;
  }

  /** A happening in words. */
  words(one: Happening): string {
    const { model } = this;
    const { ops, passes, firings, gradients } = model.data;
    switch (one.kind) {
      case "op": {
        const kind = model.text(ops.kind[one.row]);
        return `${model.label(one.row)} ${kind === "op" ? "ran" : kind === "failed" ? "failed" : "came"}`;
      }
      case "entered":
      case "left":
        return `${model.label(model.numOps + one.row)} was ${one.kind}`;
      case "begun":
        return `${model.text(passes.label[one.row])} began`;
      case "ended":
        return model.failedPasses.includes(one.row) ? `${model.text(passes.label[one.row])} failed: ${model.errorOf(one.row)}` : `${model.text(passes.label[one.row])} ended`;
      case "fired":
        return `${model.text(firings.node[one.row])} fired`;
      case "gradient": {
        const op = gradients.op[one.row]!;
        const whose = op >= 0 ? model.label(op) : model.text(gradients.param[one.row]);
        return `the gradient of ${whose} came`;
      }
    }
  }
}

function sorted(column: Maybe[]): Float64Array {
  return Float64Array.from(column.filter((event): event is number => event !== null)).sort();
}

/** How many of some sorted numbers are below a limit. */
function below(sortedNumbers: Float64Array, limit: number): number {
  let [low, high] = [0, sortedNumbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sortedNumbers[middle]! < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
