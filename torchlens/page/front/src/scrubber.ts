// The bar below: the events of the capture as a line of time, played forwards and backwards.

import { button, el, option } from "./dom";
import { count } from "./format";
import type { Theme } from "./colours";
import type { Model } from "./model";
import type { Timeline } from "./timeline";

const SPEEDS = [1, 5, 25, 100, 500, 2500];

export class Scrubber {
  readonly element = el("footer", { id: "scrubber", label: "time" });
  position: number;
  private readonly slider = el("input", { type: "range", id: "position", label: "position in the events" });
  private readonly strip = el("canvas", { class: "strip" });
  private readonly words = el("span", { class: "words", id: "event" });
  private readonly speed = el("select", { id: "speed", label: "events a second" });
  private readonly way = el("select", { id: "way", label: "direction" });
  private readonly play: HTMLButtonElement;
  private readonly following = el("input", { type: "checkbox", id: "follow" });
  private playing = 0;
  private before = 0;
  private rest = 0;

  constructor(
    private readonly model: Model,
    private readonly timeline: Timeline,
    private readonly changed: (position: number, how: "step" | "play" | "slide") => void,
  ) {
    this.position = timeline.count;
    this.slider.min = "0";
    this.slider.max = String(timeline.count);
    this.slider.step = "1";
    this.slider.value = String(timeline.count);
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go(Number(this.slider.value), "slide");
    });
    const quick = SPEEDS.find((one) => timeline.count / one <= 20) ?? SPEEDS[SPEEDS.length - 1]!;
    for (const one of SPEEDS) {
      const made = option(`${count(one)} events/s`, one);
      made.selected = one === quick;
      this.speed.append(made);
    }
    this.way.append(option("forwards", 1), option("backwards", -1));
    this.play = button("Play", () => this.toggle(), { id: "play", title: "play, pause (space)" });
    this.following.checked = true;
    const jumps = el("select", { id: "jump", label: "go to" });
    jumps.append(el("option", {}, "go to …"));
    const places: [string, number][] = [["the beginning", 0]];
    const firstOp = timeline.happenings.find((one) => one.kind === "op");
    if (firstOp) places.push(["the first op", firstOp.event + 1]);
    model.data.passes.begun.forEach((event, row) => {
      if (event !== null) places.push([`${model.text(model.data.passes.label[row])}, its beginning`, event + 1]);
      const ended = model.data.passes.ended[row];
      if (ended !== null && ended !== undefined) places.push([`${model.text(model.data.passes.label[row])}, its end`, ended + 1]);
    });
    places.push(["the end", timeline.count]);
    for (const [text, position] of places) jumps.append(option(text, position));
    jumps.addEventListener("change", () => {
      if (jumps.selectedIndex > 0) this.seek(Number(jumps.value));
      jumps.selectedIndex = 0;
    });
    this.element.append(
      el(
        "div",
        { class: "row" },
        button("|◂", () => this.seek(0), { title: "to the beginning", label: "to the beginning", id: "first" }),
        button("◂◂", () => this.happening(-1), { title: "to the last event that shows ( < )", label: "last event that shows", id: "before" }),
        button("◂", () => this.step(-1), { title: "one event back ( , )", label: "one event back", id: "back" }),
        this.play,
        button("▸", () => this.step(1), { title: "one event on ( . )", label: "one event on", id: "on" }),
        button("▸▸", () => this.happening(1), { title: "to the next event that shows ( > )", label: "next event that shows", id: "after" }),
        button("▸|", () => this.seek(timeline.count), { title: "to the end", label: "to the end", id: "last" }),
        this.way,
        this.speed,
        jumps,
        el("label", { title: "keep what happens in sight while playing" }, this.following, "follow"),
        this.words,
      ),
      el("div", { class: "track" }, this.strip, this.slider),
    );
    this.say();
  }

  get follows(): boolean {
    return this.following.checked;
  }

  seek(position: number): void {
    this.pause();
    this.go(position, "step");
  }

  step(by: number): void {
    this.seek(this.position + by);
  }

  happening(way: 1 | -1): void {
    this.seek(this.timeline.beside(this.position, way));
  }

  toggle(): void {
    if (this.playing) {
      this.pause();
      return;
    }
    const way = Number(this.way.value);
    if (way > 0 && this.position >= this.timeline.count) this.go(0, "play");
    if (way < 0 && this.position <= 0) this.go(this.timeline.count, "play");
    this.before = performance.now();
    this.rest = 0;
    this.play.textContent = "Pause";
    this.playing = requestAnimationFrame((now) => this.tick(now));
  }

  private tick(now: number): void {
    // A page that was not shown for a while goes on where it was.
    const passed = Math.min(0.25, (now - this.before) / 1000);
    this.before = now;
    this.rest += passed * Number(this.speed.value);
    const by = Math.floor(this.rest);
    this.rest -= by;
    const way = Number(this.way.value);
    if (by > 0) this.go(this.position + by * way, "play");
    const over = way > 0 ? this.position >= this.timeline.count : this.position <= 0;
    if (over) this.pause();
    else this.playing = requestAnimationFrame((next) => this.tick(next));
  }

  pause(): void {
    cancelAnimationFrame(this.playing);
    this.playing = 0;
    this.play.textContent = "Play";
  }

  private go(position: number, how: "step" | "play" | "slide"): void {
    this.position = Math.max(0, Math.min(this.timeline.count, Math.round(position)));
    this.slider.value = String(this.position);
    this.say();
    this.changed(this.position, how);
  }

  private say(): void {
    const { position, timeline } = this;
    const at = timeline.at(position).map((one) => timeline.words(one));
    const what = position === 0 ? "nothing yet" : at.length ? at.join(", ") : position >= timeline.count ? "all of it" : "nothing that shows";
    this.words.textContent = `${count(position)} of ${count(timeline.count)} events: ${what}`;
    this.words.title = this.words.textContent;
    this.slider.setAttribute("aria-valuetext", this.words.textContent);
  }

  /** The strip above the slider: where ops ran, nodes fired and passes stand. */
  draw(theme: Theme): void {
    const { strip, timeline, model } = this;
    const { width } = this.strip.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    strip.width = Math.max(1, Math.round(width * ratio));
    strip.height = Math.round(12 * ratio);
    const c = strip.getContext("2d")!;
    c.scale(ratio, ratio);
    c.fillStyle = theme.header;
    c.fillRect(0, 0, width, 12);
    const x = (event: number): number => (event / Math.max(1, timeline.count)) * width;
    const wide = Math.max(1, width / Math.max(1, timeline.count));
    model.data.passes.begun.forEach((event, row) => {
      if (event === null) return;
      const end = model.data.passes.ended[row] ?? timeline.count;
      c.globalAlpha = 0.2;
      c.fillStyle = theme.fired;
      c.fillRect(x(event), 0, Math.max(1, x(end + 1) - x(event)), 12);
    });
    const drawn = new Set<string>();
    for (const { event, kind, row } of timeline.happenings) {
      const isFailed = kind === "op" ? row === model.failed : kind === "ended" && model.failedPasses.includes(row);
      if (kind !== "op" && kind !== "fired" && kind !== "gradient" && !isFailed) continue;
      const at = Math.floor(x(event));
      const key = `${kind}${at}`;
      if (drawn.has(key) && !isFailed) continue;
      drawn.add(key);
      c.globalAlpha = kind === "gradient" ? 1 : 0.75;
      c.fillStyle = isFailed ? theme.failed : kind === "op" ? theme.strong : theme.fired;
      if (kind === "gradient") c.fillRect(at, 0, wide, 4);
      else c.fillRect(at, 3, Math.max(1, wide - 0.5), 9);
    }
    c.globalAlpha = 1;
  }
}
