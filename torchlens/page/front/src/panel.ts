// The panel at the side: what is selected in words, or what was at an event.

import { button, el, svg } from "./dom";
import { NOT_KNOWN, bytes, count, flops, seconds, short } from "./format";
import { keyList } from "./keys";
import type { Values } from "./data";
import type { Model } from "./model";
import { type Happening, Timeline } from "./timeline";

export interface Doings {
  select(id: number | undefined): void;
  toggle(group: number): void;
  isOpen(group: number): boolean;
  seek(position: number): void;
}

/** Entries of a list beyond which a person asks for more. */
const MOST_LISTED = 60;
const MOST_OF_PATH = 6; // of the groups around what is selected, beside the root

const NO_DIARY = "This file has no events of backward passes; open the journal to play them.";

export class Panel {
  readonly element = el("aside", { id: "panel", label: "details" });
  private readonly body = el("div", { class: "body" });
  private readonly tabs: HTMLButtonElement[];
  private tab: "details" | "moment" = "details";
  private selected: number | undefined;
  private position: number;

  constructor(
    private readonly model: Model,
    private readonly timeline: Timeline,
    private readonly does: Doings,
  ) {
    this.position = timeline.count;
    this.tabs = (["details", "moment"] as const).map((tab) => {
      const text = tab === "details" ? "Details" : "This moment";
      const made = button(text, () => this.turnTo(tab), { class: "tab" });
      made.dataset["tab"] = tab;
      return made;
    });
    this.element.append(el("div", { class: "tabs" }, ...this.tabs), this.body);
    this.fill();
  }

  turnTo(tab: "details" | "moment"): void {
    this.tab = tab;
    this.fill();
  }

  select(id: number | undefined): void {
    this.selected = id;
    this.tab = "details";
    this.fill();
  }

  setMoment(position: number): void {
    this.position = position;
    if (this.tab === "moment") this.fill();
  }

  private fill(): void {
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset["tab"] === this.tab));
    const id = this.selected;
    let parts: (Node | null)[];
    if (this.tab === "moment") parts = this.moment();
    else if (id === undefined) parts = this.whole();
    else if (this.model.isOp(id)) parts = this.op(id);
    else parts = this.group(id);
    this.body.replaceChildren(...parts.filter((part): part is Node => part !== null));
    if (this.tab === "details") this.body.scrollTop = 0;
  }

  // -- parts

  private link(id: number, text?: string, note?: string): HTMLElement {
    const made = button(text ?? this.model.label(id), () => this.does.select(id), { class: "link" });
    return note ? el("span", {}, made, el("span", { class: "note" }, ` ${note}`)) : made;
  }

  private eventLink(event: number | null | undefined): Node {
    if (event === null || event === undefined) return document.createTextNode("no event");
    return button(`event ${count(event)}`, () => this.does.seek(event + 1), {
      class: "link",
      title: "go to this moment",
    });
  }

  private links(title: string, ids: number[], none: string): HTMLElement {
    return section(`${title} (${count(ids.length)})`, ids.length ? this.list(ids.map((id) => () => this.link(id, undefined, this.noteOf(id)))) : el("p", { class: "note" }, none));
  }

  private noteOf(id: number): string {
    const { model } = this;
    return model.isOp(id) ? model.text(model.data.ops.shape[id]) : model.className(id);
  }

  /** A list that is lengthened when asked. */
  private list(entries: (() => Node)[]): HTMLElement {
    const made = el("ul");
    let shown = 0;
    const more = (): void => {
      const next = Math.min(entries.length, shown + MOST_LISTED);
      for (; shown < next; shown++) made.append(el("li", {}, entries[shown]!()));
      if (shown < entries.length) {
        const rest = button(`${count(entries.length - shown)} more`, () => {
          item.remove();
          more();
        }, { class: "link more" });
        const item = el("li", {}, rest);
        made.append(item);
      }
    };
    more();
    return made;
  }

  private pathOf(id: number): HTMLElement {
    const path = el("div", { class: "path" });
    const groups = this.model.path(id).filter((one) => !this.model.isStretch(one));
    const first = Math.max(1, groups.length - MOST_OF_PATH);
    groups.forEach((group, at) => {
      if (at > 0 && at < first) {
        if (at === 1) path.append(`… ${count(first - 1)} more › `);
        return;
      }
      const name = group === this.model.root ? this.model.className(group) || this.model.label(group) : this.model.shortName(group);
      path.append(this.link(group, ended(name)), " › ");
    });
    path.append(el("b", {}, this.model.isOp(id) ? this.model.label(id) : ended(this.model.shortName(id))));
    return path;
  }

  private whole(): (Node | null)[] {
    const { model } = this;
    const { data } = model;
    const times = topBy(model.numOps, (op) => model.time(op), 8);
    return [
      el("h2", {}, model.heading),
      data.model ? el("p", { class: "note" }, data.model) : null,
      this.ending(),
      ...model.failedPasses.slice(0, MOST_LISTED).map((row) => this.failedPass(row)),
      table(data.facts.map(([name, text]) => [name, text])),
      times.length
        ? section("slowest ops", this.list(times.map((op) => () => this.link(op, undefined, seconds(model.time(op))))))
        : null,
      data.passes.label.length
        ? section("backward passes", this.list(data.passes.label.map((_, row) => () => this.passLine(row))), data.events.has_diary ? null : el("p", { class: "note" }, NO_DIARY))
        : null,
      section("how to look around", keyList()),
    ];
  }

  private ending(): HTMLElement | null {
    const { data, failed } = this.model;
    if (!data.ending) return null;
    const { kind, message, where } = data.ending;
    return el(
      "div",
      { class: "failure" },
      el("b", {}, kind),
      message ? el("p", {}, message) : null,
      where ? el("p", { class: "note" }, where) : null,
      failed >= 0 ? button(`see ${this.model.label(failed)}`, () => this.does.select(failed), { class: "link" }) : null,
    );
  }

  private failedPass(row: number, hasLink = true): HTMLElement {
    const { model } = this;
    const op = model.data.passes.op?.[row] ?? -1;
    return el(
      "div",
      { class: "failure" },
      el("b", {}, `${model.text(model.data.passes.label[row])} failed`),
      el("p", {}, model.errorOf(row)),
      op >= 0 && hasLink ? button(`see ${model.label(op)}`, () => this.does.select(op), { class: "link" }) : null,
    );
  }

  private passLine(row: number): HTMLElement {
    const { passes, events } = this.model.data;
    const words = `${this.model.text(passes.label[row])}: ${this.model.text(passes.status[row])}`;
    return events.has_diary ? el("span", {}, `${words}, `, this.eventLink(passes.begun[row])) : el("span", {}, words);
  }

  private op(op: number): (Node | null)[] {
    const { model } = this;
    const { ops } = model.data;
    const layer = model.text(ops.layer[op]);
    const siblings = model.opsOfLayer.get(layer) ?? [];
    const marks = (ops.marks[op] ?? []).map((mark) => el("span", { class: "mark" }, model.text(mark)));
    const kind = model.text(ops.kind[op]);
    const rows: Row[] = [
      ["kind", kind === "op" ? model.text(ops.type[op]) : kind === "failed" ? `${model.text(ops.type[op])}, failed` : kind],
      ["shape", model.text(ops.shape[op]) || NOT_KNOWN],
      ["dtype", model.text(ops.dtype[op]) || NOT_KNOWN],
      ["time", seconds(ops.time[op] ?? null)],
      ["FLOPs", flops(ops.flops[op] ?? null)],
      ["memory", bytes(ops.memory[op] ?? null)],
      ["arguments", model.text(ops.args[op])],
    ];
    if ((ops.passes[op] ?? 1) > 1) rows.push(["pass", `${count(ops.pass[op])} of ${count(ops.passes[op])} of ${layer}`]);
    const parts: (Node | null)[] = [
      this.pathOf(op),
      el("h2", {}, model.label(op)),
      marks.length ? el("p", {}, ...marks) : null,
      op === model.failed ? this.ending() : null,
      ...model.failedPasses.filter((row) => model.data.passes.op?.[row] === op).map((row) => this.failedPass(row, false)),
      // An input has no time; a call that failed gave nothing.
      table(rows.filter(([, text]) => text !== "" && (kind === "op" || text !== NOT_KNOWN))),
    ];
    const event = ops.event[op];
    if (event !== null && event !== undefined) parts.push(el("p", { class: "note" }, "at ", this.eventLink(event)));
    parts.push(
      this.links("parents", model.parents[op]!, "reads no other op"),
      this.links("children", model.uses[op]!, "no other op reads it"),
      this.source(ops.place[op]),
    );
    if (siblings.length > 1) parts.push(this.siblings(op, siblings, layer));
    const values = model.values(ops.values[op]);
    if (values) parts.push(section("values", ...statistics(values)));
    parts.push(...this.gradients(model.gradientsOfOp[op]!, "gradient"));
    const params = (ops.params[op] ?? []).map((address) => model.text(address));
    if (params.length) {
      parts.push(section("parameters", this.list(params.map((address) => () => el("code", {}, address)))));
      for (const address of params) parts.push(...this.gradients(model.gradientsOfParam.get(address) ?? [], `gradient of ${address}`));
    }
    const nodes: number[] = [];
    model.data.firings.op.forEach((one, row) => {
      if (one === op) nodes.push(row);
    });
    if (nodes.length) {
      parts.push(
        section(
          `autograd nodes that fired (${count(nodes.length)})`,
          this.list(
            nodes.map((row) => () => {
              const { firings } = model.data;
              const time = firings.time[row];
              return el(
                "span",
                {},
                `${model.text(firings.node[row])}, `,
                this.eventLink(firings.event[row]),
                el("span", { class: "note" }, time === null || time === undefined ? "" : ` ${seconds(time)}`),
              );
            }),
          ),
        ),
      );
    }
    return parts;
  }

  /** The first and the last pass of a layer, and those around one. */
  private siblings(op: number, all: number[], layer: string): HTMLElement {
    const at = all.indexOf(op);
    const near = all.filter((_, k) => k === 0 || k === all.length - 1 || Math.abs(k - at) <= 3);
    const row = el("p", { class: "passes" });
    let before = -1;
    for (const one of near) {
      const k = all.indexOf(one);
      if (k > before + 1) row.append("… ");
      before = k;
      const number = count(this.model.data.ops.pass[one]);
      row.append(one === op ? el("b", {}, number) : button(number, () => this.does.select(one), { class: "link", title: this.model.label(one) }), " ");
    }
    return section(`passes of ${layer} (${count(all.length)})`, row);
  }

  private gradients(rows: number[], title: string): HTMLElement[] {
    const { gradients, passes } = this.model.data;
    return rows.map((row) => {
      const values = this.model.values(gradients.values[row]);
      const there = Timeline.is(gradients.event[row], this.position);
      return section(
        `${title}, ${this.model.text(passes.label[gradients.pass[row]!]) || "a pass"}`,
        el(
          "p",
          {},
          `${this.model.text(gradients.shape[row]) || "shape not known"}; ${gradients.kept[row] ? "kept" : "not kept"}; `,
          gradients.event[row] === null ? null : this.eventLink(gradients.event[row]),
          there ? null : el("b", {}, " not there yet"),
        ),
        ...(values ? statistics(values) : []),
      );
    });
  }

  private source(at: number | null | undefined): HTMLElement | null {
    const place = at === null || at === undefined ? undefined : this.model.data.places[at];
    if (!place) return null;
    const lines = el("pre", { class: "source" });
    for (const [number, text] of place.lines ?? []) {
      const line = el("span", { class: number === place.line ? "line here" : "line" });
      line.append(el("span", { class: "number" }, String(number).padStart(5)), ` ${text}\n`);
      lines.append(line);
    }
    return section(
      "source",
      el("p", { class: "where" }, `${place.file}:${place.line}`, place.function ? `, in ${place.function}` : ""),
      place.lines?.length ? lines : el("p", { class: "note" }, "the text of the file was not kept"),
    );
  }

  private group(id: number): (Node | null)[] {
    const { model } = this;
    const { calls } = model.data;
    const rows: Row[] = [];
    const toggle =
      id === model.root
        ? null
        : button(this.does.isOpen(id) ? "Close" : "Open", () => {
            this.does.toggle(id);
            this.fill();
          }, { class: "toggle" });
    const parts: (Node | null)[] = [this.pathOf(id)];
    if (model.isCall(id)) {
      const row = model.call(id);
      parts.push(el("h2", {}, model.label(id)));
      rows.push(
        ["class", model.className(id)],
        ["returned", model.text(calls.shape[row])],
        ["parameters", calls.params[row] === null ? "" : count(calls.params[row])],
      );
    } else parts.push(el("h2", {}, "a stretch of ops"), el("p", { class: "note" }, model.shortName(id)));
    const groups = countGroups(model, id);
    rows.push(
      ["ops", count(model.numOpsIn(id))],
      ["module calls inside", groups ? count(groups) : ""],
      ["time in torch calls", seconds(model.time(id))],
      ["FLOPs", flops(model.flops(id))],
      ["memory", bytes(model.memory(id))],
    );
    parts.push(toggle, table(rows.filter(([, text]) => text !== "")));
    if (id === model.root) parts.splice(2, 0, this.ending());
    if (model.isCall(id)) {
      const row = model.call(id);
      parts.push(el("p", { class: "note" }, "entered at ", this.eventLink(calls.entered[row]), ", left at ", this.eventLink(calls.left[row])));
      const others = model.callsOfAddress.get(model.text(calls.address[row])) ?? [];
      if (others.length > 1) parts.push(this.links("calls of this module", others, ""));
    }
    parts.push(
      section(
        `inside (${count(model.children[id]!.length)})`,
        this.list(
          model.children[id]!.map((child) => () =>
            this.link(child, model.isOp(child) ? undefined : model.shortName(child), this.noteOf(child)),
          ),
        ),
      ),
    );
    return parts;
  }

  private moment(): (Node | null)[] {
    const { model, timeline, position } = this;
    const { data } = model;
    const last = timeline.at(position);
    const pass = timeline.pass(position);
    const time = position > 0 ? data.events.times?.[position - 1] : null;
    const parts: (Node | null)[] = [
      el("h2", {}, position === 0 ? "before the first event" : position >= timeline.count ? "after the last event" : `after event ${count(position - 1)}`),
      time === null || time === undefined ? null : el("p", { class: "note" }, `${seconds(time)} after the first event`),
      last.length ? this.list(last.map((one) => () => this.happening(one))) : null,
      table([
        ["ops that ran", `${count(timeline.numRun(position))} of ${count(model.numOpsIn(model.root))}`],
        ["nodes that fired", `${count(timeline.numFired(position))} of ${count(data.firings.node.length)}`],
        ["gradients there", `${count(timeline.numGradients(position))} of ${count(data.gradients.event.length)}`],
      ]),
    ];
    if (!data.events.has_diary) {
      parts.push(el("p", { class: "note" }, NO_DIARY));
    }
    const running = position < timeline.count ? timeline.running(position) : [];
    parts.push(
      section(
        "running",
        running.length
          ? this.list(running.map((call) => () => this.link(model.numOps + call, undefined, model.className(model.numOps + call))))
          : el("p", { class: "note" }, "no module call"),
      ),
    );
    if (pass >= 0) {
      const fired = timeline.fired(position, pass).reverse();
      const ended = data.passes.ended[pass];
      const over = ended !== null && ended !== undefined && ended < position;
      parts.push(
        section(
          `${model.text(data.passes.label[pass])}, ${over ? "ended" : "running"}: fired (${count(fired.length)}), the last first`,
          this.list(
            fired.map((row) => () => {
              const op = data.firings.op[row]!;
              const node = model.text(data.firings.node[row]);
              return op >= 0 ? this.link(op, node, model.label(op)) : el("span", {}, node);
            }),
          ),
        ),
      );
    }
    const gradients = timeline.gradients(position).reverse();
    if (gradients.length) {
      parts.push(
        section(
          `gradients that are there (${count(gradients.length)}), the last first`,
          this.list(
            gradients.map((row) => () => {
              const op = data.gradients.op[row]!;
              const pass = `(${model.text(data.passes.label[data.gradients.pass[row]!])})`;
              return op >= 0 ? this.link(op, undefined, pass) : el("span", {}, `${model.text(data.gradients.param[row])} ${pass}`);
            }),
          ),
        ),
      );
    }
    return parts;
  }

  private happening(one: Happening): HTMLElement {
    const subject = this.timeline.subject(one);
    const words = this.timeline.words(one);
    return subject >= 0 ? this.link(subject, words) : el("span", {}, words);
  }
}

type Row = [string, string];

function table(rows: Row[]): HTMLElement {
  const made = el("dl");
  for (const [name, text] of rows) made.append(el("dt", {}, name), el("dd", {}, text));
  return made;
}

function section(title: string, ...parts: (Node | null)[]): HTMLElement {
  return el("section", {}, el("h3", {}, title), ...parts);
}

function statistics(values: Values): Node[] {
  const rows: Row[] = [];
  for (const name of ["mean", "std", "min", "max"] as const) {
    if (values[name] !== undefined) rows.push([name, short(values[name])]);
  }
  if (values.count !== undefined) rows.push(["count", count(values.count)]);
  for (const name of ["nan", "inf"] as const) if (values[name]) rows.push([name, count(values[name])]);
  const parts: Node[] = [];
  const { bars } = values;
  if (bars?.length) parts.push(histogram(bars, values));
  parts.push(table(rows));
  return parts;
}

function histogram(bars: number[], values: Values): HTMLElement {
  const [w, h] = [300, 56];
  const most = bars.reduce((a, b) => Math.max(a, b), 1);
  const picture = svg("svg", { viewBox: `0 0 ${w} ${h}`, class: "histogram", role: "img" });
  const wide = w / bars.length;
  bars.forEach((bar, at) => {
    const high = bar > 0 ? Math.max(1, (bar / most) * h) : 0;
    const made = svg("rect", { x: at * wide + 0.5, y: h - high, width: Math.max(0.5, wide - 1), height: high });
    const title = svg("title", {});
    title.textContent = count(bar);
    made.append(title);
    picture.append(made);
  });
  const figure = el("figure");
  figure.append(picture, el("figcaption", {}, el("span", {}, short(values.low ?? values.min)), el("span", {}, short(values.high ?? values.max))));
  return figure;
}

function countGroups(model: Model, id: number): number {
  let found = 0;
  const stack = [id];
  while (stack.length) {
    for (const child of model.children[stack.pop()!]!) {
      if (model.isOp(child)) continue;
      if (model.isCall(child)) found++;
      stack.push(child);
    }
  }
  return found;
}

function topBy(n: number, of: (at: number) => number | null, most: number): number[] {
  const known: [number, number][] = [];
  for (let at = 0; at < n; at++) {
    const value = of(at);
    if (value !== null && value > 0) known.push([value, at]);
  }
  return known
    .sort((a, b) => b[0] - a[0])
    .slice(0, most)
    .map(([, at]) => at);
}

/** The last letters of a name: an address that was cut has the same ones before them as those around it. */
function ended(name: string): string {
  return name.length > 40 ? `…${name.slice(-30)}` : name;
}
