// Where the children of one open group stand, and how the edges between them run.
//
// Reads  boxes with sizes, in the order in which they ran, and edges between them. Data that comes from outside, or goes
//        there, has an end at a pin on the upper or lower border.
// Rule   A group is laid out alone: what is closed costs nothing, and opening one group leaves others as they are.
// Note   dagre gives the better picture and takes 0.1 s for 60 boxes, 2 s for 300; above a small size each box goes below
//        the boxes that it reads, and long edges run beside them in lanes, which takes time in proportion to their number.
// Rule   What would be far higher than wide is cut into columns, read from left to right, if that makes it much lower: where
//        one box is most of it, all stay one below the other.

import dagre from "@dagrejs/dagre";

export const PIN_IN = -1;
export const PIN_OUT = -2;

export interface Box {
  w: number;
  h: number;
}

export interface Edge {
  from: number; // position of a box, or PIN_IN
  to: number; // position of a box, or PIN_OUT
  count: number;
}

export interface Layout {
  w: number;
  h: number;
  x: Float64Array; // of the centre of each box
  y: Float64Array;
  lines: number[][]; // of each edge: x, y, x, y, ...
  square: boolean[]; // whether a line runs in lanes, around corners
  pinIn: number; // x of each pin; NaN for none
  pinOut: number;
}

const MOST_FOR_DAGRE = 36;
const MOST_EDGES_FOR_DAGRE = 72;
const GAP = 26;
const ROW_GAP = 28;
const LANE = 7;
const TRACKS = 5; // heights at which lines to lanes run between two rows
const TRACK = 2;
const WIDEST_ROW = 1500;
const STEEP = 700; // px; what is less wide or high than this can be seen at once
const TALL = 2600;
const COLUMN_GAP = 40;
const WORTH = 0.6; // of its height, what the highest column has at most

const made = new Map<string, Layout>();

export function layoutOf(boxes: Box[], edges: Edge[]): Layout {
  if (boxes.length > MOST_FOR_DAGRE || edges.length > MOST_EDGES_FOR_DAGRE) return inColumns(rows(boxes, edges), boxes, edges);
  // Equal modules are laid out once: a model of a hundred equal blocks costs one.
  const key = `${boxes.map((box) => `${box.w},${box.h}`).join()};${edges.map((edge) => `${edge.from},${edge.to}`).join()}`;
  let layout = made.get(key);
  if (!layout) {
    if (made.size > 5000) made.clear();
    layout = layered(boxes, edges);
    // A chain with loose ends at each step goes aslant in dagre's picture.
    if (layout.w > STEEP && boxes.length > 6) {
      const other = rows(boxes, edges);
      if (other.w < 0.6 * layout.w) layout = other;
    }
    made.set(key, (layout = inColumns(layout, boxes, edges)));
  }
  return layout;
}

function layered(boxes: Box[], edges: Edge[]): Layout {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ nodesep: GAP, edgesep: 12, ranksep: ROW_GAP, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  boxes.forEach((box, at) => graph.setNode(String(at), { width: box.w, height: box.h }));
  for (const pin of [PIN_IN, PIN_OUT]) {
    if (edges.some((edge) => edge.from === pin || edge.to === pin)) graph.setNode(String(pin), { width: 1, height: 1 });
  }
  for (const edge of edges) graph.setEdge(String(edge.from), String(edge.to));
  dagre.layout(graph);

  const x = new Float64Array(boxes.length);
  const y = new Float64Array(boxes.length);
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  const widen = (px: number, py: number, w: number, h: number): void => {
    left = Math.min(left, px - w / 2);
    right = Math.max(right, px + w / 2);
    top = Math.min(top, py - h / 2);
    bottom = Math.max(bottom, py + h / 2);
  };
  boxes.forEach((box, at) => {
    const node = graph.node(String(at));
    x[at] = node.x!;
    y[at] = node.y!;
    widen(node.x!, node.y!, box.w, box.h);
  });
  const points: { x: number; y: number }[][] = edges.map((edge) => graph.edge(String(edge.from), String(edge.to)).points);
  for (const line of points) for (const point of line) widen(point.x, point.y, 0, 0);
  if (!boxes.length) [left, right, top, bottom] = [0, 0, 0, 0];
  const pinAt = (pin: number): number => (graph.hasNode(String(pin)) ? graph.node(String(pin)).x! - left : NaN);
  for (let at = 0; at < boxes.length; at++) {
    x[at]! -= left;
    y[at]! -= top;
  }
  const layout: Layout = {
    w: right - left,
    h: bottom - top,
    x,
    y,
    square: edges.map(() => false),
    lines: points.map((line) => line.flatMap((point) => [point.x - left, point.y - top])),
    pinIn: pinAt(PIN_IN),
    pinOut: pinAt(PIN_OUT),
  };
  edges.forEach((edge, at) => endsOf(layout.lines[at]!, edge, boxes, layout));
  return layout;
}

/** Let an edge leave below its box and arrive above the other one, near to where it is headed. */
function endsOf(line: number[], edge: Edge, boxes: Box[], layout: Layout): void {
  const end = line.length - 2;
  if (edge.from === PIN_IN) {
    line[0] = layout.pinIn;
    line[1] = 0;
  } else {
    const box = boxes[edge.from]!;
    line[0] = near(layout.x[edge.from]!, box.w, line[2]!);
    line[1] = layout.y[edge.from]! + box.h / 2;
  }
  if (edge.to === PIN_OUT) {
    line[end] = layout.pinOut;
    line[end + 1] = layout.h;
  } else {
    const box = boxes[edge.to]!;
    line[end] = near(layout.x[edge.to]!, box.w, line[end - 2]!);
    line[end + 1] = layout.y[edge.to]! - box.h / 2;
  }
}

function near(centre: number, width: number, wanted: number): number {
  return Math.max(centre - width * 0.3, Math.min(centre + width * 0.3, wanted));
}

/** Boxes in rows, each below what it reads; edges over more than one row run in lanes at the side. */
function rows(boxes: Box[], edges: Edge[]): Layout {
  const n = boxes.length;
  const above: number[][] = boxes.map(() => []);
  const below: number[][] = boxes.map(() => []);
  for (const { from, to } of edges) {
    if (from >= 0 && to >= 0 && from < to) {
      above[to]!.push(from);
      below[from]!.push(to);
    }
  }
  const rank = new Int32Array(n);
  for (let at = 0; at < n; at++) for (const one of above[at]!) rank[at] = Math.max(rank[at]!, rank[one]! + 1);
  // What reads nothing here stands right above what first reads it.
  for (let at = n - 1; at >= 0; at--) {
    if (!above[at]!.length && below[at]!.length) rank[at] = Math.min(...below[at]!.map((one) => rank[one]!)) - 1;
  }
  /** Edges on the longest way down from each box. */
  const longest = new Int32Array(n);
  for (let at = n - 1; at >= 0; at--) for (const one of below[at]!) longest[at] = Math.max(longest[at]!, longest[one]! + 1);
  const lowest = n ? rank.reduce((a, b) => Math.min(a, b)) : 0;
  const byRank: number[][] = [];
  for (let at = 0; at < n; at++) (byRank[rank[at]! - lowest] ??= []).push(at);

  const x = new Float64Array(n);
  const y = new Float64Array(n);
  const row = new Int32Array(n);
  let depth = 0;
  let number = 0;
  let [left, right] = [Infinity, -Infinity];
  const placed = new Uint8Array(n);
  const put = (part: number[], wanted: Map<number, number>): void => {
    // What most follows from stands right below what it reads; the others beside it.
    let pivot = 0;
    part.forEach((at, k) => {
      if (longest[at]! > longest[part[pivot]!]!) pivot = k;
    });
    const main = part[pivot]!;
    x[main] = wanted.get(main)!;
    let edge = x[main]! + boxes[main]!.w / 2;
    for (let k = pivot + 1; k < part.length; k++) {
      const at = part[k]!;
      x[at] = Math.max(wanted.get(at)!, edge + GAP + boxes[at]!.w / 2);
      edge = x[at]! + boxes[at]!.w / 2;
    }
    edge = x[main]! - boxes[main]!.w / 2;
    for (let k = pivot - 1; k >= 0; k--) {
      const at = part[k]!;
      x[at] = Math.min(wanted.get(at)!, edge - GAP - boxes[at]!.w / 2);
      edge = x[at]! - boxes[at]!.w / 2;
    }
    let high = 0;
    for (const at of part) {
      placed[at] = 1;
      row[at] = number;
      high = Math.max(high, boxes[at]!.h);
      left = Math.min(left, x[at]! - boxes[at]!.w / 2);
      right = Math.max(right, x[at]! + boxes[at]!.w / 2);
    }
    for (const at of part) y[at] = depth + boxes[at]!.h / 2;
    depth += high + ROW_GAP;
    number++;
  };
  const wish = (members: number[]): Map<number, number> => {
    const wanted = new Map(members.map((at) => [at, mean(above[at]!.map((one) => x[one]!))]));
    members.sort((a, b) => wanted.get(a)! - wanted.get(b)! || longest[b]! - longest[a]! || a - b);
    return wanted;
  };
  for (const ranked of byRank) {
    const members = ranked?.filter((at) => !placed[at]);
    if (!members?.length) continue;
    const wanted = wish(members);
    const parts = [...broken(members, boxes)];
    for (const part of parts) {
      put(part, wanted);
      if (parts.length === 1) continue;
      // What only one of a part reads, and nothing follows from, stands right below the part and not below all of them.
      const ends = part.flatMap((at) => below[at]!).filter((at) => !below[at]!.length && above[at]!.length === 1);
      if (!ends.length) continue;
      const places = wish(ends);
      for (const line of broken(ends, boxes)) put(line, places);
    }
  }
  if (!n) [left, right] = [0, 0];
  const hasIn = edges.some((edge) => edge.from === PIN_IN);
  const hasOut = edges.some((edge) => edge.to === PIN_OUT);
  const lift = hasIn ? ROW_GAP : 0;
  const h = Math.max(0, depth - ROW_GAP) + lift + (hasOut ? ROW_GAP : 0);
  for (let at = 0; at < n; at++) y[at]! += lift;

  const middle = (left + right) / 2;
  const lanes = { left: [] as number[], right: [] as number[] };
  const spans = edges.map((edge, at) => ({
    at,
    from: edge.from === PIN_IN ? -1 : row[edge.from]!,
    to: edge.to === PIN_OUT ? number : row[edge.to]!,
  }));
  spans.sort((a, b) => a.to - a.from - (b.to - b.from) || a.from - b.from || a.at - b.at);
  const taken = { left: [] as number[][], right: [] as number[][] };
  const lines: number[][] = edges.map(() => []);
  const square = edges.map(() => false);
  for (const { at, from, to } of spans) {
    const edge = edges[at]!;
    const x0 = edge.from === PIN_IN ? middle : x[edge.from]!;
    const y0 = edge.from === PIN_IN ? 0 : y[edge.from]! + boxes[edge.from]!.h / 2;
    const x1 = edge.to === PIN_OUT ? middle : x[edge.to]!;
    const y1 = edge.to === PIN_OUT ? h : y[edge.to]! - boxes[edge.to]!.h / 2;
    if (to - from <= 1 && to > from) {
      lines[at] = [x0, y0, x1, y1];
      continue;
    }
    const side = edge.from === PIN_IN ? "left" : "right";
    const lane = laneFor(taken[side], from, to, edge.from);
    lanes[side][lane] = 1;
    const lx = side === "left" ? left - 14 - lane * LANE : right + 14 + lane * LANE;
    const w0 = edge.from === PIN_IN ? 0 : boxes[edge.from]!.w * 0.3;
    const w1 = edge.to === PIN_OUT ? 0 : boxes[edge.to]!.w * 0.3;
    const towards = side === "left" ? -1 : 1;
    const [a, b] = [x0 + towards * w0, x1 + towards * w1];
    // What leaves a row runs above what arrives at the next one, and each lane at a height of its own while there are few.
    const height = (lane % TRACKS) * TRACK;
    const [out, into] = [y0 + 3 + height, y1 - ROW_GAP / 2 - 2 + height];
    lines[at] = [a, y0, a, out, lx, out, lx, into, b, into, b, y1];
    square[at] = true;
  }
  left -= lanes.left.length ? 14 + lanes.left.length * LANE : 0;
  right += lanes.right.length ? 14 + lanes.right.length * LANE : 0;
  for (let at = 0; at < n; at++) x[at]! -= left;
  for (const line of lines) for (let at = 0; at < line.length; at += 2) line[at]! -= left;
  return { w: right - left, h, x, y, lines, square, pinIn: hasIn ? middle - left : NaN, pinOut: hasOut ? middle - left : NaN };
}

/** A row too wide is broken into several. */
function* broken(members: number[], boxes: Box[]): Generator<number[]> {
  let part: number[] = [];
  let width = 0;
  for (const at of members) {
    if (part.length && width + boxes[at]!.w > WIDEST_ROW) {
      yield part;
      part = [];
      width = 0;
    }
    part.push(at);
    width += boxes[at]!.w + GAP;
  }
  if (part.length) yield part;
}

/** The innermost lane that is free over some rows, or in which the lines come from the same box. Lanes are shared where
 * there are very many. */
function laneFor(taken: number[][], from: number, to: number, source: number): number {
  const MOST = 24;
  for (let lane = 0; lane < MOST; lane++) {
    const spans = (taken[lane] ??= []); // first row, last row, source
    let free = true;
    for (let at = 0; at < spans.length && free; at += 3) {
      free = to <= spans[at]! || from >= spans[at + 1]! || spans[at + 2] === source;
    }
    if (free) {
      spans.push(from, to, source);
      return lane;
    }
  }
  return MOST - 1;
}

function mean(numbers: number[]): number {
  return numbers.length ? numbers.reduce((a, b) => a + b, 0) / numbers.length : 0;
}

/** The same, cut between rows into columns where it is far higher than wide. */
function inColumns(layout: Layout, boxes: Box[], edges: Edge[]): Layout {
  if (layout.h < TALL || layout.h < 2.5 * layout.w) return layout;
  const wanted = Math.max(2, Math.round(Math.sqrt((1.5 * layout.h) / (layout.w + COLUMN_GAP))));
  const cuts = cutsOf(layout, boxes, edges, wanted);
  const begins = [0, ...cuts];
  const ends = [...cuts, layout.h];
  if (Math.max(...begins.map((begin, at) => ends[at]! - begin)) > WORTH * layout.h) return layout;
  const columnAt = (y: number): number => {
    let column = 0;
    while (column < cuts.length && y >= cuts[column]!) column++;
    return column;
  };
  const column = boxes.map((_, at) => columnAt(layout.y[at]!));
  const fromOf = (edge: Edge): number => (edge.from === PIN_IN ? 0 : column[edge.from]!);
  const toOf = (edge: Edge): number => (edge.to === PIN_OUT ? cuts.length : column[edge.to]!);

  // Edges from column to column go up between columns, those of each box in a lane of its own while there are few.
  const crossing = edges.map((_, at) => at).filter((at) => fromOf(edges[at]!) !== toOf(edges[at]!));
  const lanes = new Array<number>(begins.length).fill(0);
  const laneOf = new Map<number, number>();
  const laneFrom = new Map<number, number>();
  for (const at of crossing) {
    const edge = edges[at]!;
    const lane = laneFrom.get(edge.from) ?? lanes[fromOf(edge)]!++ % 12;
    laneFrom.set(edge.from, lane);
    laneOf.set(at, lane);
  }
  // Lines that stay in a column may run outside of the boxes; each column is as wide as its boxes and lines.
  const left = new Array<number>(begins.length).fill(Infinity);
  const right = new Array<number>(begins.length).fill(-Infinity);
  const widen = (c: number, a: number, b: number): void => {
    left[c] = Math.min(left[c]!, a);
    right[c] = Math.max(right[c]!, b);
  };
  boxes.forEach((box, at) => widen(column[at]!, layout.x[at]! - box.w / 2, layout.x[at]! + box.w / 2));
  edges.forEach((edge, at) => {
    if (fromOf(edge) !== toOf(edge)) return;
    const line = layout.lines[at]!;
    for (let k = 0; k < line.length; k += 2) widen(fromOf(edge), line[k]!, line[k]!);
  });
  const over = Math.min(12, Math.max(0, ...lanes)) * LANE + ROW_GAP; // room above the columns, for lines that come down
  const offX: number[] = [];
  const gutter: number[] = [];
  let wide = 0;
  for (let c = 0; c < begins.length; c++) {
    if (left[c]! > right[c]!) [left[c], right[c]] = [0, 0];
    offX.push(wide - left[c]!);
    wide += right[c]! - left[c]!;
    gutter.push(wide + 14);
    if (c + 1 < begins.length) wide += COLUMN_GAP + Math.min(12, lanes[c]!) * LANE;
  }
  const fromAbove = crossing.some((at) => edges[at]!.from === PIN_IN);
  const offY = begins.map((begin, c) => (c || fromAbove ? over : 0) - begin);
  const h = Math.max(...begins.map((begin, c) => ends[c]! - begin)) + over + (edges.some((edge) => edge.to === PIN_OUT) ? ROW_GAP : 0);
  const x = layout.x.map((value, at) => value + offX[column[at]!]!);
  const y = layout.y.map((value, at) => value + offY[column[at]!]!);
  const pinIn = layout.pinIn + offX[0]!;
  const pinOut = layout.pinOut + offX[begins.length - 1]!;
  const lines = edges.map((edge, at) => {
    const [from, to] = [fromOf(edge), toOf(edge)];
    if (from === to) {
      const line = layout.lines[at]!.map((value, k) => value + (k % 2 ? offY[from]! : offX[from]!));
      if (edge.from === PIN_IN) line[1] = 0;
      if (edge.to === PIN_OUT) line[line.length - 1] = h;
      return line;
    }
    const lane = laneOf.get(at)!;
    const x0 = edge.from === PIN_IN ? pinIn : x[edge.from]!;
    const y0 = edge.from === PIN_IN ? 0 : y[edge.from]! + boxes[edge.from]!.h / 2;
    const x1 = edge.to === PIN_OUT ? pinOut : x[edge.to]!;
    const y1 = edge.to === PIN_OUT ? h : y[edge.to]! - boxes[edge.to]!.h / 2;
    const up = gutter[from]! + lane * LANE;
    const top = over - ROW_GAP / 2 - lane * LANE;
    const isFirst = edge.to !== PIN_OUT && y1 <= over + 1;
    // Down beside the boxes of the other column, unless it is headed for the first of them.
    const down = to === from + 1 && !isFirst ? up : isFirst ? x1 : gutter[to - 1]! + lane * LANE;
    const line = edge.from === PIN_IN ? [x0, 0, x0, top] : [x0, y0, x0, y0 + ROW_GAP / 2, up, y0 + ROW_GAP / 2, up, top];
    if (down !== up || edge.from === PIN_IN) line.push(down, top);
    else line.splice(-2);
    if (!isFirst) line.push(down, y1 - ROW_GAP / 2, x1, y1 - ROW_GAP / 2);
    line.push(x1, y1);
    return line;
  });
  const square = edges.map((_, at) => layout.square[at]! || laneOf.has(at));
  return { w: wide, h, x, y, lines, square, pinIn, pinOut };
}

/** Heights between rows at which to cut, about evenly, through as few edges as may be. */
function cutsOf(layout: Layout, boxes: Box[], edges: Edge[], columns: number): number[] {
  const order = boxes.map((_, at) => at).sort((a, b) => layout.y[a]! - boxes[a]!.h / 2 - (layout.y[b]! - boxes[b]!.h / 2));
  const free: number[] = [];
  let low = -Infinity;
  for (const at of order) {
    const top = layout.y[at]! - boxes[at]!.h / 2;
    if (low > -Infinity && top - low >= ROW_GAP * 0.6) free.push((low + top) / 2);
    low = Math.max(low, layout.y[at]! + boxes[at]!.h / 2);
  }
  const cut = (y: number): number =>
    edges.reduce((sum, { from, to }) => {
      const y0 = from === PIN_IN ? 0 : layout.y[from]!;
      const y1 = to === PIN_OUT ? layout.h : layout.y[to]!;
      return sum + (y0 < y && y1 >= y ? 1 : 0);
    }, 0);
  const found: number[] = [];
  const high = layout.h / columns;
  for (let k = 1; k < columns; k++) {
    const wanted = (found[found.length - 1] ?? 0) + (layout.h - (found[found.length - 1] ?? 0)) / (columns - k + 1);
    const near = free.filter((y) => Math.abs(y - wanted) < high * 0.35 && y > (found[found.length - 1] ?? 0) + high * 0.4);
    let best: number | undefined;
    let least = Infinity;
    for (const y of near) {
      const cost = cut(y) + (3 * Math.abs(y - wanted)) / high;
      if (cost < least) [best, least] = [y, cost];
    }
    if (best !== undefined) found.push(best);
  }
  return found;
}
