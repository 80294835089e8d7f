// The canvas: draws the scene as far as it is in sight, and is zoomed, panned and clicked.
//
// Rule  One frame draws what is in sight and large enough to be seen, in few calls per colour; nothing is drawn unless
//       something changed.

import { select } from "d3-selection";
import { type ZoomBehavior, type ZoomTransform, zoom, zoomIdentity, zoomTransform } from "d3-zoom";
import { type Colours, type Theme, inkOn } from "./colours";
import { LINE_FONT, NAME_FONT, TITLE_FONT } from "./fonts";
import { type Model, pushTo } from "./model";
import { Overview } from "./overview";
import { HEADER, type Line, type Scene, type Shown } from "./scene";
import { Timeline } from "./timeline";

/** Zoom from which the text of boxes is drawn, and at which a page begins at least. */
const TEXT_FROM = 0.55;
const LEGIBLE = 0.8;
/** Pixels below which, both ways, an open group is drawn as one speck: larger ones where there is very much to draw. */
const speck = (shown: number): number => (shown > 20_000 ? 24 : 8);
const GLYPH = 24; // width of the place that opens and closes a group

export interface Callbacks {
  selected(id: number | undefined): void;
  toggled(group: number): void;
}

export class View {
  readonly canvas = document.createElement("canvas");
  private theme!: Theme;
  selected: number | undefined;
  private hovered: number | undefined;
  private current = -1; // what the last event was of
  private position = 0;
  private readonly fired = new Set<number>();
  private readonly withGradient = new Set<number>();
  private strong = new Set<number>();
  readonly overview: Overview;
  private readonly context = this.canvas.getContext("2d", { alpha: false })!;
  private readonly zoom: ZoomBehavior<HTMLCanvasElement, unknown>;
  private width = 1;
  private height = 1;
  private frame = 0;
  private moving = 0;
  /** Milliseconds that the last frames took to draw. */
  readonly frames: number[] = [];

  constructor(
    private readonly model: Model,
    private readonly scene: Scene,
    private readonly timeline: Timeline,
    private readonly colours: Colours,
    private readonly callbacks: Callbacks,
  ) {
    const { canvas } = this;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", "the model, its modules and the data flow between their ops");
    this.position = timeline.count;
    this.overview = new Overview(scene, (x, y) => {
      const { k } = this.transform;
      this.put(this.width / 2 - x * k, this.height / 2 - y * k, k);
    });
    this.zoom = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.01, 4])
      .clickDistance(4)
      .on("zoom", () => this.redraw());
    select(canvas).call(this.zoom).on("dblclick.zoom", null);
    canvas.addEventListener("click", (event) => this.clicked(event));
    canvas.addEventListener("dblclick", (event) => this.clickedTwice(event));
    canvas.addEventListener("pointermove", (event) => this.pointed(event));
    canvas.addEventListener("pointerleave", () => this.hover(undefined));
  }

  // -- camera

  private get transform(): ZoomTransform {
    return zoomTransform(this.canvas);
  }

  resize(): void {
    const { width, height } = this.canvas.getBoundingClientRect();
    const [before, high] = [this.width, this.height];
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    if (before > 1 && high > 1) this.put(this.transform.x + (this.width - before) / 2, this.transform.y, this.transform.k);
    this.draw();
  }

  private put(x: number, y: number, k: number): void {
    select(this.canvas).call(this.zoom.transform, zoomIdentity.translate(x, y).scale(k));
  }

  /** Go somewhere within some frames, so that the eye can follow. */
  private go(x: number, y: number, k: number): void {
    cancelAnimationFrame(this.moving);
    const from = this.transform;
    const begun = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const step = (): void => {
      const part = still ? 1 : Math.min(1, (performance.now() - begun) / 180);
      const eased = 1 - (1 - part) ** 3;
      this.put(from.x + (x - from.x) * eased, from.y + (y - from.y) * eased, from.k + (k - from.k) * eased);
      if (part < 1) this.moving = requestAnimationFrame(step);
    };
    step();
  }

  zoomBy(factor: number): void {
    select(this.canvas).call(this.zoom.scaleBy, factor);
  }

  panBy(x: number, y: number): void {
    const { k } = this.transform;
    select(this.canvas).call(this.zoom.translateBy, x / k, y / k);
  }

  private fitting(): { x: number; y: number; k: number } {
    const { scene } = this;
    const k = Math.min(1.1, (this.width - 32) / scene.w, (this.height - 32) / scene.h);
    return { x: (this.width - scene.w * k) / 2, y: (this.height - scene.h * k) / 2, k };
  }

  /** All of the model. */
  fit(): void {
    const { x, y, k } = this.fitting();
    this.go(x, y, k);
  }

  /** All of the model where that can be read, else its beginning. */
  begin(): void {
    const whole = this.fitting();
    if (whole.k >= LEGIBLE) this.put(whole.x, whole.y, whole.k);
    else {
      const { scene } = this;
      const k = LEGIBLE;
      const first = scene.shown.find((one) => !one.open);
      let x = (this.width - scene.w * k) / 2;
      if (x < 16) x = first && (first.x + first.w) * k > this.width - 32 ? this.width / 2 - (first.x + first.w / 2) * k : 16;
      this.put(x, 16, k);
    }
  }

  /** Bring what stands for an id into sight, large enough to be read. */
  show(id: number, how: { centred?: boolean } = {}): void {
    const one = this.scene.get(this.scene.visible(id));
    if (!one) return;
    const { x, y, k } = this.transform;
    const margin = 40;
    const [left, top] = [one.x * k + x, one.y * k + y];
    const high = one.open ? HEADER : one.h;
    const inSight =
      left >= margin - 8 &&
      top >= margin - 8 &&
      top + high * k <= this.height - margin + 8 &&
      (left + one.w * k <= this.width - margin + 8 || (one.open && left < this.width / 2));
    if (inSight && k >= TEXT_FROM && !how.centred) return;
    const scale = Math.max(k, LEGIBLE);
    const wide = one.w * scale < this.width - 2 * margin;
    this.go(
      wide ? this.width / 2 - (one.x + one.w / 2) * scale : margin - one.x * scale,
      one.open && one.h * scale > this.height - 2 * margin ? margin - one.y * scale : this.height / 2 - (one.y + one.h / 2) * scale,
      scale,
    );
  }

  /** Keep what stands for an id where it is on the screen, whatever `change` does to the scene. */
  keeping(id: number, change: () => void): void {
    cancelAnimationFrame(this.moving);
    const before = this.scene.get(this.scene.visible(id));
    const { x, y, k } = this.transform;
    change();
    this.sceneChanged();
    const after = this.scene.get(this.scene.visible(id));
    if (!before || !after) return;
    // By its upper middle, where data comes in.
    const [bx, ax] = [before.x + before.w / 2, after.x + after.w / 2];
    this.put(x + (bx - ax) * k, y + (before.y - after.y) * k, k);
  }

  // -- what is shown

  sceneChanged(): void {
    this.overview.changed();
    this.markMoment();
    this.markLines();
    this.redraw();
  }

  dress(theme: Theme): void {
    this.theme = theme;
    this.overview.changed();
    this.redraw();
  }

  select(id: number | undefined): void {
    this.selected = id;
    this.markLines();
    this.redraw();
  }

  setMoment(position: number, current: number): void {
    this.position = position;
    this.current = current;
    this.markMoment();
    this.redraw();
  }

  private markMoment(): void {
    const { timeline, scene, model, position } = this;
    this.fired.clear();
    this.withGradient.clear();
    const pass = timeline.pass(position);
    if (position < timeline.count && pass >= 0) {
      const { op, event, pass: of } = model.data.firings;
      for (let row = 0; row < op.length; row++) {
        const at = event[row]!;
        if (op[row]! >= 0 && of[row] === pass && at !== null && at < position) this.fired.add(scene.standsFor(op[row]!));
      }
    }
    const { op, event } = model.data.gradients;
    for (let row = 0; row < op.length; row++) {
      if (op[row]! >= 0 && Timeline.is(event[row], position)) this.withGradient.add(scene.standsFor(op[row]!));
    }
  }

  private markLines(): void {
    this.strong = new Set();
    const id = this.selected;
    if (id === undefined || id === this.model.root) return;
    const { model, scene } = this;
    const ops = model.isOp(id) ? [id] : model.opsIn(id);
    for (const op of ops) {
      for (const parent of model.parents[op]!) if (model.isOp(id) || !model.holds(id, parent)) scene.linesBetween(parent, op, this.strong);
      for (const use of model.uses[op]!) if (model.isOp(id) || !model.holds(id, use)) scene.linesBetween(op, use, this.strong);
    }
  }

  /** Middle of what stands for an id, in pixels of the window. */
  where(id: number): { x: number; y: number; inSight: boolean } | undefined {
    const one = this.scene.get(this.scene.visible(id));
    if (!one) return undefined;
    const { x, y, k } = this.transform;
    const frame = this.canvas.getBoundingClientRect();
    const at = { x: (one.x + one.w / 2) * k + x, y: (one.y + (one.open ? HEADER / 2 : one.h / 2)) * k + y };
    const inSight = at.x >= 0 && at.y >= 0 && at.x < this.width && at.y < this.height;
    return { x: at.x + frame.left, y: at.y + frame.top, inSight };
  }

  get scale(): number {
    return this.transform.k;
  }

  // -- the pointer

  private under(event: MouseEvent): { one: Shown | undefined; onGlyph: boolean } {
    const frame = this.canvas.getBoundingClientRect();
    const [x, y] = this.transform.invert([event.clientX - frame.left, event.clientY - frame.top]);
    const one = this.scene.hit(x, y);
    const isGroup = one !== undefined && !this.model.isOp(one.id) && one.id !== this.model.root;
    const high = one?.open ? HEADER : one?.h;
    return { one, onGlyph: isGroup && x - one.x < GLYPH && y - one.y < high! && this.transform.k >= 0.4 };
  }

  private clicked(event: MouseEvent): void {
    const { one, onGlyph } = this.under(event);
    if (one && onGlyph && event.detail < 2) this.callbacks.toggled(one.id);
    else if (!onGlyph) this.callbacks.selected(one && one.id !== this.model.root ? one.id : undefined);
  }

  private clickedTwice(event: MouseEvent): void {
    const { one, onGlyph } = this.under(event);
    if (one && !onGlyph && !this.model.isOp(one.id) && one.id !== this.model.root) this.callbacks.toggled(one.id);
  }

  private pointed(event: PointerEvent): void {
    if (event.buttons) return;
    const { one, onGlyph } = this.under(event);
    this.canvas.classList.toggle("over", onGlyph || (one !== undefined && !one.open));
    this.hover(one && !one.open ? one.id : undefined);
  }

  private hover(id: number | undefined): void {
    if (this.hovered !== id) {
      this.hovered = id;
      this.canvas.title = id === undefined ? "" : this.model.label(id);
      this.redraw();
    }
  }

  // -- drawing

  redraw(): void {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
  }

  draw(): void {
    const begun = performance.now();
    const { context: c, theme } = this;
    const { x, y, k } = this.transform;
    const ratio = window.devicePixelRatio || 1;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = theme.back;
    c.fillRect(0, 0, this.width, this.height);
    c.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    const sight: [number, number, number, number] = [-x / k, -y / k, (this.width - x) / k, (this.height - y) / k];
    const { seen, lines } = this.inSight(sight, k);
    this.drawGroups(seen, k);
    this.drawLines(lines, k);
    this.drawBoxes(seen, k);
    this.drawTexts(seen, k);
    this.drawRings(seen, k);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (k < TEXT_FROM) this.drawNames(seen);
    const part = { x: sight[0], y: sight[1], w: sight[2] - sight[0], h: sight[3] - sight[1] };
    this.overview.draw(part, theme, (id) => this.colours.of(id));
    this.frames.push(performance.now() - begun);
    if (this.frames.length > 500) this.frames.shift();
  }

  /** What is in sight, with nothing inside of open groups that are specks; and the lines of the groups that are not. */
  private inSight(sight: [number, number, number, number], k: number): { seen: Shown[]; lines: number[] } {
    const { shown, lines: all } = this.scene;
    const seen: Shown[] = [];
    const lines: number[] = [];
    const small = speck(shown.length);
    for (let at = 0; at < shown.length; ) {
      const one = shown[at]!;
      if (one.x > sight[2] || one.y > sight[3] || one.x + one.w < sight[0] || one.y + one.h < sight[1]) {
        at = one.open ? one.end : at + 1;
        continue;
      }
      if (one.open && one.w * k < small && one.h * k < small) {
        seen.push({ ...one, open: false });
        at = one.end;
        continue;
      }
      seen.push(one);
      for (let line = one.lines[0]; line < one.lines[1]; line++) {
        const [left, top, right, bottom] = all[line]!.box;
        if (left > sight[2] || top > sight[3] || right < sight[0] || bottom < sight[1]) continue;
        if ((right - left + bottom - top) * k >= 1.5) lines.push(line);
      }
      at++;
    }
    return { seen, lines };
  }

  private isRunning(one: Shown): boolean {
    return this.model.isCall(one.id) && this.timeline.isRunning(this.model.call(one.id), this.position);
  }

  /** Whether anything of it has happened. */
  private isThere(id: number): boolean {
    const { model, timeline, position } = this;
    if (position >= timeline.count) return true;
    if (model.isOp(id)) return timeline.hasRun(id, position);
    if (model.isCall(id)) return Timeline.is(model.data.calls.entered[model.call(id)], position);
    return model.opsIn(id).some((op) => timeline.hasRun(op, position));
  }

  private drawGroups(seen: Shown[], k: number): void {
    const { context: c, theme } = this;
    for (const one of seen) {
      if (!one.open) continue;
      c.fillStyle = theme.group[one.depth % theme.group.length]!;
      c.fillRect(one.x, one.y, one.w, one.h);
      const running = this.isRunning(one);
      c.strokeStyle = running ? theme.running : theme.groupLine;
      c.lineWidth = (running ? 2.5 : 1) / Math.max(k, 0.3);
      c.strokeRect(one.x, one.y, one.w, one.h);
    }
  }

  private drawLines(lines: number[], k: number): void {
    const { theme } = this;
    this.drawSome(lines, theme.edge, Math.max(1.1, 0.7 / k), k);
    if (this.strong.size) this.drawSome([...this.strong], theme.strong, Math.max(2.2, 1.6 / k), k);
  }

  private drawSome(lines: number[], colour: string, wide: number, k: number): void {
    const { context: c, scene } = this;
    c.strokeStyle = colour;
    c.lineWidth = wide;
    c.beginPath();
    lines.forEach((line, number) => {
      this.trace(scene.lines[line]!, k);
      if (number % 200 === 199) {
        c.stroke();
        c.beginPath();
      }
    });
    c.stroke();
    if (k > 0.35) this.arrows(lines, colour);
  }

  private trace({ points, square }: Line, k: number): void {
    const { context: c } = this;
    const end = points.length - 2;
    c.moveTo(points[0]!, points[1]!);
    if (k < 0.3 || end === 2) {
      for (let at = 2; at <= end; at += 2) c.lineTo(points[at]!, points[at + 1]!);
      return;
    }
    if (square) {
      for (let at = 2; at < end; at += 2) c.arcTo(points[at]!, points[at + 1]!, points[at + 2]!, points[at + 3]!, 7);
      c.lineTo(points[end]!, points[end + 1]!);
      return;
    }
    // Through the middles, bent by the points: smooth, and never outside the hull of the line.
    for (let at = 2; at < end; at += 2) {
      const last = at + 2 === end;
      const mx = last ? points[end]! : (points[at]! + points[at + 2]!) / 2;
      const my = last ? points[end + 1]! : (points[at + 1]! + points[at + 3]!) / 2;
      c.quadraticCurveTo(points[at]!, points[at + 1]!, mx, my);
    }
  }

  private arrows(lines: number[], colour: string): void {
    const { context: c, scene } = this;
    c.fillStyle = colour;
    c.beginPath();
    for (const line of lines) {
      const { points, arrow } = scene.lines[line]!;
      if (!arrow) continue;
      const end = points.length - 2;
      const [x, y] = [points[end]!, points[end + 1]!];
      const angle = Math.atan2(y - points[end - 1]!, x - points[end - 2]!);
      c.moveTo(x, y);
      for (const way of [2.75, -2.75]) c.lineTo(x + 7 * Math.cos(angle + way), y + 7 * Math.sin(angle + way));
      c.closePath();
    }
    c.fill();
  }

  /** Colour of a box now: a gradient that is still to come has none. */
  private colour(id: number): string {
    const { colours } = this;
    return colours.by === "gradient" && !this.withGradient.has(id) && !this.model.isRed(id) ? colours.unknown : colours.of(id);
  }

  private drawBoxes(seen: Shown[], k: number): void {
    const { context: c, theme, model } = this;
    const round = k > 0.45;
    const buckets = new Map<string, Shown[]>();
    for (const one of seen) {
      if (one.open) continue;
      const key = (this.isThere(one.id) ? "1" : "0") + (model.isOp(one.id) ? "o" : "g") + this.colour(one.id);
      pushTo(buckets, key, one);
    }
    for (const [key, boxes] of buckets) {
      const isOp = key[1] === "o";
      c.globalAlpha = key[0] === "1" ? 1 : 0.22;
      c.fillStyle = key.slice(2);
      c.beginPath();
      for (const one of boxes) {
        if (round) c.roundRect(one.x, one.y, one.w, one.h, isOp ? 6 : 3);
        else c.rect(one.x, one.y, one.w, one.h);
      }
      c.fill();
      if (k > 0.25) {
        c.strokeStyle = isOp ? theme.groupLine : theme.closedLine;
        c.lineWidth = isOp ? 1 : 1.4;
        c.stroke();
      }
    }
    c.globalAlpha = 1;
  }

  private drawTexts(seen: Shown[], k: number): void {
    if (k < TEXT_FROM) return;
    const { context: c, theme, colours, scene, model } = this;
    c.textBaseline = "middle";
    for (const one of seen) {
      const { id, x, y, w } = one;
      if (one.open) {
        c.textAlign = "left";
        c.fillStyle = theme.header;
        c.fillRect(x + 0.5, y + 0.5, w - 1, HEADER);
        c.fillStyle = this.isRunning(one) ? theme.running : theme.text;
        if (id !== model.root) triangle(c, x + 12, y + HEADER / 2, true);
        c.font = TITLE_FONT;
        const { title, line } = scene.face(id);
        const left = x + (id === model.root ? 10 : GLYPH);
        c.fillText(title, left, y + HEADER / 2 + 1);
        const used = left + c.measureText(title).width + 10;
        c.font = LINE_FONT;
        if (used + c.measureText(line).width < x + w - 8) {
          c.fillStyle = theme.faint;
          c.fillText(line, used, y + HEADER / 2 + 1);
        }
        continue;
      }
      const ink = model.isRed(id) ? theme.failedText : inkOn(this.colour(id));
      c.globalAlpha = this.isThere(id) ? 1 : 0.45;
      c.fillStyle = c.globalAlpha < 1 ? theme.text : ink;
      const isOp = model.isOp(id);
      const { title, line: usual } = scene.face(id);
      const line = colours.words(id) ?? usual;
      if (!isOp) triangle(c, x + 13, y + one.h / 2, false);
      c.textAlign = "center";
      const middle = isOp ? x + w / 2 : x + (w + GLYPH - 6) / 2;
      c.font = TITLE_FONT;
      c.fillText(title, middle, y + one.h / 2 - 7);
      c.font = LINE_FONT;
      c.fillText(line, middle, y + one.h / 2 + 9);
    }
    c.globalAlpha = 1;
  }

  /** Frames around what is selected, runs, has fired or is pointed at, and dots on what has a gradient. */
  private drawRings(seen: Shown[], k: number): void {
    const { context: c, theme, model } = this;
    const scale = 1 / Math.max(k, 0.25);
    const ring = (one: Shown, colour: string, wide: number, off: number): void => {
      c.strokeStyle = colour;
      c.lineWidth = wide * Math.min(scale, 3);
      c.beginPath();
      c.roundRect(one.x - off, one.y - off, one.w + 2 * off, one.h + 2 * off, 7);
      c.stroke();
    };
    const selected = this.selected === undefined ? -1 : this.scene.visible(this.selected);
    const current = this.current < 0 ? -1 : this.scene.visible(this.current);
    for (const one of seen) {
      const { id } = one;
      if (!one.open) {
        if (this.fired.has(id)) ring(one, theme.fired, 2, 1);
        if (this.isRunning(one)) ring(one, theme.running, 2.5, 1);
        if (k > 0.3 && this.withGradient.has(id)) {
          c.fillStyle = theme.gradient;
          c.strokeStyle = theme.back;
          c.lineWidth = 1.5;
          c.beginPath();
          c.arc(one.x + one.w - 3, one.y + 3, 5, 0, 7);
          c.fill();
          c.stroke();
        }
        if (model.isRed(id)) ring(one, theme.failed, 2, 3);
      }
      if (id === this.hovered) ring(one, theme.faint, 1.5, 2);
      if (id === current) ring(one, theme.running, 3, 4);
      if (id === selected) ring(one, theme.strong, 3, 3);
    }
  }

  /** From afar: the names of what is large enough, the outer groups first, none over another. */
  private drawNames(seen: Shown[]): void {
    const { context: c, theme, scene, model } = this;
    const { x, y, k } = this.transform;
    const taken: [number, number, number, number][] = [];
    c.font = NAME_FONT;
    c.textAlign = "left";
    c.textBaseline = "middle";
    const named = seen.filter((one) => k > 0.3 || !model.isOp(one.id)).sort((a, b) => a.depth - b.depth);
    for (const one of named) {
      const [w, h] = [one.w * k, one.h * k];
      if (w < 30 || h < 12) continue;
      const text = scene.face(one.id).title;
      const wide = c.measureText(text).width + 8;
      if (wide > w) continue;
      const left = Math.max(one.x * k + x, Math.min(4, one.x * k + x + w - wide)) + 2;
      const top = Math.max(one.y * k + y, Math.min(4, one.y * k + y + h - 16)) + (one.open ? 1 : (h - 15) / 2);
      const box: [number, number, number, number] = [left, top, left + wide, top + 15];
      if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      if (one.open) {
        c.fillStyle = theme.header;
        c.fillRect(left, top, wide, 15);
      }
      c.fillStyle = one.open ? theme.text : model.isRed(one.id) ? theme.failedText : inkOn(this.colour(one.id));
      c.fillText(text, left + 4, top + 8);
      if (taken.length > 400) break;
    }
  }
}

function triangle(c: CanvasRenderingContext2D, x: number, y: number, down: boolean): void {
  c.beginPath();
  if (down) {
    c.moveTo(x - 5, y - 3);
    c.lineTo(x + 5, y - 3);
    c.lineTo(x, y + 4);
  } else {
    c.moveTo(x - 3, y - 5);
    c.lineTo(x + 4, y);
    c.lineTo(x - 3, y + 5);
  }
  c.fill();
}
