// What is to be seen: every op and group whose holders are all open, with its place, and the edges between them.
//
// Rule  An arrangement of a group is kept until something inside opens or closes.

import { LINE_FONT, TITLE_FONT } from "./fonts";
import { type Edge, type Layout, PIN_IN, PIN_OUT, layoutOf } from "./layout";
import type { Model } from "./model";

export const HEADER = 26;

/** Groups deeper than this stay closed: the frames around them would fill the screen, and the stack is finite. */
export const DEEPEST = 400;
const PAD = 12;

export interface Shown {
  id: number;
  x: number; // left
  y: number; // top
  w: number;
  h: number;
  open: boolean;
  depth: number;
  /** Of an open group: where what stands in it ends among what is shown, and its own lines among the lines. */
  end: number;
  lines: [number, number];
}

export interface Line {
  points: number[]; // absolute: x, y, ...
  box: [number, number, number, number]; // left, top, right, bottom
  count: number;
  arrow: boolean;
  square: boolean;
}

interface Arranged {
  layout: Layout;
  edges: Edge[];
  children: number[];
  w: number;
  h: number;
}

interface Face {
  title: string;
  line: string;
  w: number;
  side: number; // width of both beside one another
}

export class Scene {
  shown: Shown[] = [];
  lines: Line[] = [];
  w = 0;
  h = 0;
  private readonly opened = new Set<number>();
  private readonly arranged = new Map<number, Arranged>();
  private readonly edgesOf = new Map<number, Edge[]>();
  private readonly faces = new Map<number, Face>();
  private readonly at = new Map<number, number>();
  private readonly lineAt = new Map<string, number>();
  /** Of each op, in the order of the tree: the id that stands for it. */
  private readonly standIn: Int32Array;
  private readonly measure: CanvasRenderingContext2D;

  constructor(private readonly model: Model) {
    this.standIn = new Int32Array(model.numOps);
    this.measure = document.createElement("canvas").getContext("2d")!;
    this.opened.add(model.root);
  }

  isOpen(group: number): boolean {
    return this.opened.has(group);
  }

  open(group: number): void {
    if (!this.opened.has(group) && this.model.depth[group]! < DEEPEST) {
      this.opened.add(group);
      this.forget(group);
    }
  }

  close(group: number): void {
    if (group !== this.model.root && this.opened.delete(group)) this.forget(group);
  }

  /** Open whatever holds an id, as far as it goes. */
  reveal(id: number): void {
    for (const group of this.model.path(id)) this.open(group);
  }

  /** Open every group down to a depth, and close those below. */
  openTo(depth: number): void {
    const { model } = this;
    this.opened.clear();
    this.arranged.clear();
    for (let group = model.numOps; group < model.parent.length; group++) {
      if (group === model.root || model.depth[group]! < Math.min(depth, DEEPEST)) this.opened.add(group);
    }
  }

  /** Open from the outside while what is shown stays countable. */
  openSome(most: number): void {
    const { model } = this;
    this.openTo(0);
    let level = [model.root];
    let count = model.children[model.root]!.length;
    while (level.length) {
      // A module around a single op says all that it has to say while it is closed.
      const next = level.flatMap((group) =>
        model.children[group]!.filter((child) => !model.isOp(child) && model.last[child]! - model.first[child]! > 1),
      );
      const more = next.reduce((sum, group) => sum + model.children[group]!.length, 0) - next.length;
      if (!next.length || count + more > most) break;
      for (const group of next) this.open(group);
      count += more;
      level = next;
    }
  }

  private forget(group: number): void {
    for (let above = group; above >= 0; above = this.model.parent[above]!) this.arranged.delete(above);
  }

  /** What is written on an op or a closed group. */
  face(id: number): Face {
    let face = this.faces.get(id);
    if (!face) {
      const { model } = this;
      let title: string;
      let line: string;
      if (model.isOp(id)) {
        title = model.label(id);
        line = model.text(model.data.ops.shape[id]) || model.text(model.data.ops.kind[id]);
      } else {
        const count = model.numOpsIn(id);
        title = id === model.root ? model.className(id) || model.label(id) : model.shortName(id);
        const ops = `${count.toLocaleString("en")} op${count === 1 ? "" : "s"}`;
        line = [id === model.root ? "" : model.className(id), ops].filter(Boolean).join(" · ");
      }
      title = this.fitted(title, TITLE_FONT, 230);
      line = this.fitted(line, LINE_FONT, 230);
      const widths = [this.width(title, TITLE_FONT), this.width(line, LINE_FONT)] as const;
      const wide = Math.max(...widths);
      // Few different widths: equal modules are then laid out once, and columns align.
      face = { title, line, side: widths[0] + widths[1], w: Math.max(72, Math.ceil((wide + 22) / 12) * 12) + (model.isOp(id) ? 0 : 24) };
      this.faces.set(id, face);
    }
    return face;
  }

  private width(text: string, font: string): number {
    this.measure.font = font;
    return this.measure.measureText(text).width;
  }

  private fitted(text: string, font: string, most: number): string {
    if (text.length > 200) text = `${text.slice(0, 200)}…`;
    if (this.width(text, font) <= most) return text;
    let [low, high] = [0, text.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.width(`${text.slice(0, middle)}…`, font) <= most) low = middle;
      else high = middle - 1;
    }
    return `${text.slice(0, low)}…`;
  }

  /** Edges between the children of a group, and to and from what is outside. */
  private edges(group: number): Edge[] {
    let edges = this.edgesOf.get(group);
    if (edges) return edges;
    const { model } = this;
    const children = model.children[group]!;
    const position = new Map(children.map((child, at) => [child, at]));
    const counts = new Map<number, Edge>();
    const stride = children.length + 3;
    const add = (from: number, to: number): void => {
      if (from === to) return;
      const key = (from + 3) * stride + to + 3;
      const edge = counts.get(key);
      if (edge) edge.count++;
      else counts.set(key, { from, to, count: 1 });
    };
    for (const op of model.opsIn(group)) {
      const mine = position.get(model.childHolding(group, op))!;
      for (const parent of model.parents[op]!) {
        if (model.holds(group, parent)) add(position.get(model.childHolding(group, parent))!, mine);
        else add(PIN_IN, mine);
      }
      for (const use of model.uses[op]!) if (!model.holds(group, use)) add(mine, PIN_OUT);
    }
    edges = [...counts.values()];
    this.edgesOf.set(group, edges);
    return edges;
  }

  private arrange(group: number): Arranged {
    const kept = this.arranged.get(group);
    if (kept) return kept;
    const { model } = this;
    const children = model.children[group]!;
    const boxes = children.map((child) => {
      if (model.isOp(child)) return { w: this.face(child).w, h: 40 };
      if (!this.opened.has(child)) return { w: this.face(child).w, h: 46 };
      const inner = this.arrange(child);
      return { w: inner.w, h: inner.h };
    });
    const edges = this.edges(group);
    const layout = layoutOf(boxes, edges);
    const w = Math.max(layout.w + 2 * PAD, Math.ceil(this.face(group).side) + 50);
    const made = { layout, edges, children, w, h: layout.h + HEADER + 2 * PAD };
    this.arranged.set(group, made);
    return made;
  }

  /** Give everything its place. */
  build(): void {
    this.shown = [];
    this.lines = [];
    this.at.clear();
    this.lineAt.clear();
    const { model } = this;
    const whole = this.arrange(model.root);
    this.w = whole.w;
    this.h = whole.h;
    const put = (group: number, x: number, y: number, depth: number): void => {
      const { layout, edges, children, w, h } = this.arrange(group);
      this.at.set(group, this.shown.length);
      const mine: Shown = { id: group, x, y, w, h, open: true, depth, end: 0, lines: [0, 0] };
      this.shown.push(mine);
      const left = x + (w - layout.w) / 2;
      const top = y + HEADER + PAD;
      const inside: { pinIn: number; pinOut: number; top: number; bottom: number }[] = [];
      children.forEach((child, at) => {
        const isOp = model.isOp(child);
        const isOpen = !isOp && this.opened.has(child);
        const box = isOpen ? this.arrange(child) : { w: this.face(child).w, h: isOp ? 40 : 46 };
        const cx = left + layout.x[at]! - box.w / 2;
        const cy = top + layout.y[at]! - box.h / 2;
        if (isOpen) {
          const inner = this.arrange(child);
          const side = cx + (inner.w - inner.layout.w) / 2;
          inside[at] = { pinIn: side + inner.layout.pinIn, pinOut: side + inner.layout.pinOut, top: cy, bottom: cy + box.h };
          put(child, cx, cy, depth + 1);
        } else {
          this.at.set(child, this.shown.length);
          this.shown.push({ id: child, x: cx, y: cy, w: box.w, h: box.h, open: false, depth: depth + 1, end: 0, lines: [0, 0] });
          if (isOp) this.standIn[model.place[child]!] = child;
          else this.standIn.fill(child, model.first[child]!, model.last[child]!);
        }
      });
      mine.end = this.shown.length;
      mine.lines[0] = this.lines.length;
      edges.forEach((edge, at) => {
        const points = layout.lines[at]!.map((value, k) => value + (k % 2 ? top : left));
        const end = points.length - 2;
        // Edges of an open child end at its pins; those to the outside go on to the border of this group.
        const from = inside[edge.from];
        const to = inside[edge.to];
        const square = layout.square[at]!;
        if (from && !Number.isNaN(from.pinOut)) {
          if (square) points[2] = from.pinOut;
          points.splice(0, 2, from.pinOut, from.bottom);
        }
        if (to && !Number.isNaN(to.pinIn)) {
          if (square) points[end - 2] = to.pinIn;
          points.splice(end, 2, to.pinIn, to.top);
        }
        if (edge.from === PIN_IN) points.unshift(points[0]!, y);
        if (edge.to === PIN_OUT) points.push(points[points.length - 2]!, y + h);
        this.lineAt.set(`${group},${edge.from === PIN_IN ? PIN_IN : children[edge.from]},${edge.to === PIN_OUT ? PIN_OUT : children[edge.to]}`, this.lines.length);
        this.lines.push({ points, box: boundsOf(points), count: edge.count, arrow: edge.to !== PIN_OUT && !to, square });
      });
      mine.lines[1] = this.lines.length;
    };
    put(model.root, 0, 0, 0);
  }

  /** Where an id is shown; undefined where it is not. */
  get(id: number): Shown | undefined {
    const at = this.at.get(id);
    return at === undefined ? undefined : this.shown[at];
  }

  /** What stands for an op: itself, or the closed group that holds it. */
  standsFor(op: number): number {
    return this.standIn[this.model.place[op]!]!;
  }

  /** What stands for an id. */
  visible(id: number): number {
    if (this.at.has(id)) return id;
    for (const group of this.model.path(id)) if (!this.opened.has(group)) return group;
    return this.model.root;
  }

  /** Ops that what is shown reads from, or is read by, by the ids that stand for them. */
  neighbours(id: number, way: "parents" | "uses"): number[] {
    const { model } = this;
    const found = new Set<number>();
    for (const op of model.isOp(id) ? [id] : model.opsIn(id)) {
      for (const other of model[way][op]!) {
        const stand = this.standsFor(other);
        if (stand !== id && !(model.isOp(id) ? false : model.holds(id, other))) found.add(stand);
      }
    }
    return [...found];
  }

  /** The drawn lines that data between two ops runs along. */
  linesBetween(from: number, to: number, into: Set<number>): void {
    const { model } = this;
    const ups = [from, ...model.path(from).reverse()];
    const downs = [to, ...model.path(to).reverse()];
    const above = ups.find((group) => !model.isOp(group) && model.holds(group, to));
    if (above === undefined) return;
    const note = (group: number, a: number, b: number): void => {
      const line = this.lineAt.get(`${group},${a},${b}`);
      if (line !== undefined) into.add(line);
    };
    let child = from;
    for (let at = 1; ups[at] !== above; at++) {
      note(ups[at]!, child, PIN_OUT);
      child = ups[at]!;
    }
    let other = to;
    for (let at = 1; downs[at] !== above; at++) {
      note(downs[at]!, PIN_IN, other);
      other = downs[at]!;
    }
    note(above, child, other);
  }

  /** The innermost thing at a place; undefined outside everything. */
  hit(x: number, y: number): Shown | undefined {
    let found: Shown | undefined;
    for (let at = 0; at < this.shown.length; ) {
      const one = this.shown[at]!;
      const isHere = x >= one.x && x <= one.x + one.w && y >= one.y && y <= one.y + one.h;
      if (isHere) found = one;
      at = one.open && !isHere ? one.end : at + 1;
    }
    return found;
  }
}

function boundsOf(points: number[]): [number, number, number, number] {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let at = 0; at < points.length; at += 2) {
    left = Math.min(left, points[at]!);
    right = Math.max(right, points[at]!);
    top = Math.min(top, points[at + 1]!);
    bottom = Math.max(bottom, points[at + 1]!);
  }
  return [left, top, right, bottom];
}
