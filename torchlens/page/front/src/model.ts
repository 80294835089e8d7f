// The trace as a tree of groups and ops with the data flow between them: indices over the columns, made once.
//
// Gives  ids. Ops are 0 .. numOps - 1, by row; groups follow. A group is a module call, or a stretch of
//        the children of a call that has too many to be laid out or looked at side by side.
// Rule   Children stand in the order in which they ran, so data flows from a child to later ones.

import type { PageData, Text, Values } from "./data";

/** Children beyond which a group is divided into stretches, and how many children a stretch has. */
export const MOST_CHILDREN = 120;
const IN_STRETCH = 48;

export class Model {
  readonly numOps: number;
  readonly numCalls: number;
  /** Group above each id; -1 above the root. */
  readonly parent: number[] = [];
  /** Children of each group, by id. */
  readonly children: number[][] = [];
  readonly depth: number[] = [];
  /** All ops in the order of the tree; those of one group stand together, from `first` up to `last`. */
  readonly order: Int32Array;
  readonly place: Int32Array;
  readonly first: number[] = [];
  readonly last: number[] = [];
  /** Ops that gave and took each op's data. */
  readonly parents: number[][] = [];
  readonly uses: number[][] = [];
  readonly gradientsOfOp: number[][] = [];
  readonly gradientsOfParam = new Map<string, number[]>();
  readonly callsOfAddress = new Map<string, number[]>();
  readonly opsOfLayer = new Map<string, number[]>();
  readonly opsOfParam = new Map<string, number[]>();
  /** Of the first so many in that order, how many are ops that compute: no inputs, outputs or buffers. */
  private readonly computing: Int32Array;
  readonly root: number;
  readonly failed: number;
  /** Backward passes that raised, by row. */
  readonly failedPasses: number[];
  /** The op that failed, and those in whose nodes a backward pass raised. */
  private readonly red: Set<number>;
  private readonly labels = new Map<string, number>();

  constructor(readonly data: PageData) {
    const { ops, calls, edges, gradients } = data;
    const n = (this.numOps = ops.label.length);
    const m = (this.numCalls = calls.label.length);
    this.root = n;
    this.failed = data.ending?.op ?? ops.kind.findIndex((kind) => this.text(kind) === "failed");
    const { passes } = data;
    this.failedPasses = passes.status.map((_, row) => row).filter((row) => this.text(passes.status[row]) === "error");
    this.red = new Set([this.failed, ...this.failedPasses.map((row) => passes.op?.[row] ?? -1)]);
    this.red.delete(-1);

    for (let op = 0; op < n; op++) {
      this.parent.push(n + (ops.call[op]! >= 0 && ops.call[op]! < m ? ops.call[op]! : 0));
      this.parents.push([]);
      this.uses.push([]);
      this.gradientsOfOp.push([]);
      pushTo(this.opsOfLayer, this.text(ops.layer[op]), op);
      for (const address of ops.params[op] ?? []) pushTo(this.opsOfParam, this.text(address), op);
    }
    for (let call = 0; call < m; call++) {
      const above = calls.parent[call]!;
      this.parent.push(call === 0 ? -1 : n + (above >= 0 && above < call ? above : 0));
      pushTo(this.callsOfAddress, this.text(calls.address[call]), n + call);
    }
    for (let id = n + m - 1; id >= 0; id--) this.labels.set(this.label(id), id);
    for (let edge = 0; edge < edges.from.length; edge++) {
      const from = edges.from[edge]!;
      const to = edges.to[edge]!;
      if (from >= 0 && from < n && to >= 0 && to < n && from !== to) {
        this.uses[from]!.push(to);
        this.parents[to]!.push(from);
      }
    }
    for (let row = 0; row < gradients.op.length; row++) {
      const op = gradients.op[row]!;
      if (op >= 0 && op < n) this.gradientsOfOp[op]!.push(row);
      const param = gradients.param[row];
      if (param !== null && param !== undefined) pushTo(this.gradientsOfParam, this.text(param), row);
    }
    ops.origin.forEach((origin, op) => {
      if (origin >= 0 && origin < n && origin !== op) this.gradientsOfOp[op] = this.gradientsOfOp[origin]!;
    });
    this.nest();
    this.order = new Int32Array(n);
    this.place = new Int32Array(n);
    this.number();
    this.computing = new Int32Array(n + 1);
    for (let at = 0; at < n; at++) this.computing[at + 1] = this.computing[at]! + Number(this.isComputing(this.order[at]!));
  }

  /** Put children below their groups, by when they ran, and divide what is too long into stretches. */
  private nest(): void {
    const { numOps: n, numCalls: m } = this;
    for (let id = 0; id < n + m; id++) this.children.push([]);
    const when = new Float64Array(n + m);
    let before = -1;
    for (let op = 0; op < n; op++) before = when[op] = this.data.ops.event[op] ?? before;
    for (let call = 0; call < m; call++) when[n + call] = this.data.calls.entered[call] ?? -1;
    for (let id = 0; id < n + m; id++) {
      const above = this.parent[id]!;
      if (above >= 0) this.children[above]!.push(id);
    }
    for (let group = n; group < n + m; group++) {
      const children = this.children[group]!;
      children.sort((a, b) => when[a]! - when[b]! || a - b);
      this.children[group] = this.divided(group, children);
    }
  }

  private divided(group: number, children: number[]): number[] {
    if (children.length <= MOST_CHILDREN) return children;
    const stretches: number[] = [];
    const size = Math.max(IN_STRETCH, Math.ceil(children.length / Math.ceil(children.length / IN_STRETCH)));
    for (let at = 0; at < children.length; at += size) {
      const stretch = this.parent.length;
      const held = children.slice(at, at + size);
      this.parent.push(group);
      this.children.push(held);
      for (const child of held) this.parent[child] = stretch;
      stretches.push(stretch);
    }
    return this.divided(group, stretches);
  }

  /** Depths, and the ops of each group as a stretch of one order. */
  private number(): void {
    let at = 0;
    const stack: [number, number][] = [[this.root, 0]];
    this.depth[this.root] = 0;
    this.first[this.root] = 0;
    while (stack.length) {
      const top = stack[stack.length - 1]!;
      const [group, next] = top;
      const children = this.children[group]!;
      if (next === children.length) {
        this.last[group] = at;
        stack.pop();
        continue;
      }
      top[1]++;
      const child = children[next]!;
      this.depth[child] = this.depth[group]! + 1;
      if (child < this.numOps) {
        this.order[at] = child;
        this.place[child] = at++;
      } else {
        this.first[child] = at;
        stack.push([child, 0]);
      }
    }
  }

  text(number: Text | undefined): string {
    return number === null || number === undefined ? "" : (this.data.texts[number] ?? "");
  }

  isOp(id: number): boolean {
    return id < this.numOps;
  }

  /** Whether it is the op that failed, or one in whose node a backward pass raised. */
  isRed(id: number): boolean {
    return this.red.has(id);
  }

  /** What the capture is called: by the name that it was given, else by the class of the model. */
  get heading(): string {
    const { model, title } = this.data;
    const name = model.slice(model.lastIndexOf(".") + 1);
    const isGiven = !title.startsWith(`${name}_`) || !/^\d+$/.test(title.slice(name.length + 1));
    return (isGiven && title) || name || title;
  }

  /** What a backward pass raised, and in which node. */
  errorOf(pass: number): string {
    const { error, raised_in: node } = this.data.passes;
    const where = this.text(node?.[pass]);
    return (this.text(error?.[pass]) || "it raised") + (where ? `, in ${where}` : "");
  }

  /** Whether it is an op, and no input, output, buffer or call that failed. */
  isComputing(op: number): boolean {
    return this.text(this.data.ops.kind[op]) === "op";
  }

  /** How many ops a group holds; inputs, outputs and buffers are none. */
  numOpsIn(group: number): number {
    return this.computing[this.last[group]!]! - this.computing[this.first[group]!]!;
  }

  isCall(id: number): boolean {
    return id >= this.numOps && id < this.numOps + this.numCalls;
  }

  isStretch(id: number): boolean {
    return id >= this.numOps + this.numCalls;
  }

  /** Row in the table of module calls. */
  call(id: number): number {
    return id - this.numOps;
  }

  label(id: number): string {
    if (this.isOp(id)) return this.text(this.data.ops.label[id]);
    if (this.isCall(id)) return this.text(this.data.calls.label[this.call(id)]);
    return `${this.label(this.parent[id]!)} [${this.first[id]}:${this.last[id]}]`;
  }

  /** The id of what is called so; undefined where nothing is. */
  find(label: string): number | undefined {
    return this.labels.get(label);
  }

  /** What a group is called inside the one that holds it. */
  shortName(id: number): string {
    if (this.isStretch(id)) {
      const ops = this.opsIn(id);
      const [one, other] = [ops[0], ops[ops.length - 1]];
      return one === undefined ? "nothing" : one === other ? this.label(one) : `${this.label(one)} … ${this.label(other!)}`;
    }
    const row = this.call(id);
    const address = this.text(this.data.calls.address[row]);
    const above = this.callAbove(id);
    const outer = above < 0 ? "" : this.text(this.data.calls.address[this.call(above)]);
    const name = outer && address.startsWith(`${outer}.`) ? address.slice(outer.length + 1) : address;
    const same = this.callsOfAddress.get(address)!;
    return same.length > 1 ? `${name}:${same.indexOf(id) + 1}` : name;
  }

  className(id: number): string {
    return this.isCall(id) ? this.text(this.data.calls.class[this.call(id)]) : "";
  }

  /** The module call that an id stands in; -1 for the root. */
  callAbove(id: number): number {
    let above = this.parent[id]!;
    while (above >= 0 && !this.isCall(above)) above = this.parent[above]!;
    return above;
  }

  /** Groups that hold an id, from the outermost. */
  path(id: number): number[] {
    const path: number[] = [];
    for (let above = this.parent[id]!; above >= 0; above = this.parent[above]!) path.unshift(above);
    return path;
  }

  opsIn(group: number): Int32Array {
    return this.order.subarray(this.first[group]!, this.last[group]!);
  }

  holds(group: number, op: number): boolean {
    const place = this.place[op]!;
    return place >= this.first[group]! && place < this.last[group]!;
  }

  /** The child of a group that an op of it is or stands in. */
  childHolding(group: number, op: number): number {
    let child = op;
    while (this.parent[child] !== group) child = this.parent[child]!;
    return child;
  }

  /** Seconds inside torch calls. */
  time(id: number): number | null {
    if (this.isCall(id)) return this.data.calls.time[this.call(id)] ?? null;
    return this.isOp(id) ? (this.data.ops.time[id] ?? null) : this.total(id, this.data.ops.time);
  }

  flops(id: number): number | null {
    if (this.isCall(id)) return this.data.calls.flops[this.call(id)] ?? null;
    return this.isOp(id) ? (this.data.ops.flops[id] ?? null) : this.total(id, this.data.ops.flops);
  }

  memory(id: number): number | null {
    return this.isOp(id) ? (this.data.ops.memory[id] ?? null) : this.total(id, this.data.ops.memory);
  }

  /** Sum over the ops of a group of what is known; null where nothing is. */
  private total(group: number, column: (number | null)[]): number | null {
    let sum: number | null = null;
    for (const op of this.opsIn(group)) {
      const value = column[op];
      if (value !== null && value !== undefined) sum = (sum ?? 0) + value;
    }
    return sum;
  }

  values(number: number | null | undefined): Values | null {
    return number === null || number === undefined ? null : (this.data.values[number] ?? null);
  }
}

/** Add to the list that a map has under a key. */
export function pushTo<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}
