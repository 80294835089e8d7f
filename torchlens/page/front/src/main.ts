// The page: reads the data that stands in the file, and puts together what a person sees.

import { BYS, type By, Colours, THEMES } from "./colours";
import type { PageData } from "./data";
import { button, el, option } from "./dom";
import { keyList } from "./keys";
import { Model } from "./model";
import { Panel } from "./panel";
import { DEEPEST, Scene } from "./scene";
import { Scrubber } from "./scrubber";
import { Search } from "./search";
import { Timeline } from "./timeline";
import { Told } from "./told";
import { View } from "./view";
import "./page.css";

/** Boxes that a page shows at first. */
const FIRST_SHOWN = 32;

export class Page {
  readonly model: Model;
  readonly timeline: Timeline;
  readonly scene: Scene;
  readonly view: View;
  private readonly colours: Colours;
  private readonly panel: Panel;
  private readonly scrubber: Scrubber;
  private readonly search: Search;
  private readonly legend = el("div", { id: "legend" });
  private readonly shown = el("div", { id: "shown" });
  private readonly said = el("div", { class: "said" });
  private readonly help: HTMLElement;
  private by: By = "type";
  private theme: "light" | "dark" = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  selected: number | undefined;

  constructor(data: PageData, host: HTMLElement) {
    const model = (this.model = new Model(data));
    const timeline = (this.timeline = new Timeline(model));
    this.scene = new Scene(model);
    this.colours = new Colours(model);
    this.view = new View(model, this.scene, timeline, this.colours, {
      selected: (id) => this.select(id),
      toggled: (group) => this.toggle(group),
    });
    this.panel = new Panel(model, timeline, {
      select: (id) => this.select(id, { reveal: true }),
      toggle: (group) => this.toggle(group),
      isOpen: (group) => this.scene.isOpen(group),
      seek: (position) => this.scrubber.seek(position),
    });
    this.scrubber = new Scrubber(model, timeline, (position, how) => this.moved(position, how));
    this.search = new Search(
      model,
      (id) => this.select(id, { reveal: true, centred: true }),
      () => this.view.canvas.focus(),
    );
    this.help = el("dialog", { id: "help" });
    this.help.append(el("h2", {}, "Keys"), keyList(), button("Close", () => (this.help as HTMLDialogElement).close()));
    this.said.setAttribute("aria-live", "polite");

    host.replaceChildren(
      this.toolbar(),
      el("div", { id: "stage" }, this.view.canvas, this.view.overview.canvas),
      el("div", { id: "below" }, this.legend, this.shown),
      this.panel.element,
      this.scrubber.element,
      this.said,
      this.help,
    );
    host.classList.add("ready");
    this.scene.openSome(FIRST_SHOWN);
    if (model.failed >= 0) this.scene.reveal(model.failed);
    this.scene.build();
    this.view.sceneChanged();
    this.dress();
    this.tellShown(); // with the legend it takes its rows from the view, which is fitted to what is left
    this.view.resize();
    this.view.begin();
    if (model.failed >= 0) this.view.show(model.failed);
    new ResizeObserver(() => {
      this.view.resize();
      this.scrubber.draw(THEMES[this.theme]);
    }).observe(document.getElementById("stage")!);
    window.addEventListener("keydown", (event) => this.pressed(event));
    this.leaveLists(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
      this.theme = event.matches ? "dark" : "light";
      this.dress();
    });
  }

  private toolbar(): HTMLElement {
    const { data } = this.model;
    const title = button(this.model.heading, () => this.select(undefined), { class: "title", title: `${data.model || data.title}: the whole trace` });
    const [raised] = this.model.failedPasses;
    const status = !data.ending && raised !== undefined
      ? button(`${data.status}; ${this.model.text(data.passes.label[raised])} failed`, () => {
          const op = data.passes.op?.[raised] ?? -1;
          this.select(op >= 0 ? op : undefined, { reveal: true });
        }, { class: "status failed", id: "status", title: this.model.errorOf(raised) })
      : data.ending
      ? button(`${data.status}: ${data.ending.kind}`, () => this.select(this.model.failed >= 0 ? this.model.failed : undefined, { reveal: true }), {
          class: "status failed",
          id: "status",
          title: data.ending.message ?? "",
        })
      : el("span", { class: "status", id: "status" }, data.status);
    const colour = el("select", { id: "by", label: "colour by" });
    for (const [value, text] of BYS) colour.append(option(text, value));
    colour.addEventListener("change", () => {
      this.by = colour.value as By;
      this.dress();
    });
    const depth = el("select", { id: "depth", label: "open down to a level" });
    depth.append(el("option", {}, "open …"));
    let deepest = 1;
    for (let group = this.model.root; group < this.model.parent.length; group++) {
      deepest = Math.max(deepest, (this.model.depth[group] ?? 0) + 1);
    }
    for (let level = 1; level <= Math.min(deepest, 12); level++) {
      depth.append(option(level === deepest ? "everything" : `${level} level${level === 1 ? "" : "s"}`, level));
    }
    if (deepest > 12) depth.append(option("everything", deepest));
    depth.addEventListener("change", () => {
      if (depth.selectedIndex > 0) this.openTo(Number(depth.value));
      depth.selectedIndex = 0;
    });
    return el(
      "header",
      { id: "toolbar" },
      title,
      status,
      this.search.element,
      el("label", {}, "colour ", colour),
      depth,
      button("−", () => this.level(-1), { title: "close the innermost level (c)", label: "one level less", id: "less" }),
      button("+", () => this.level(1), { title: "open one level more (o)", label: "one level more", id: "more" }),
      button("Fit", () => this.view.fit(), { title: "all of it (f)", id: "fit" }),
      button("◐", () => this.turn(), { title: "light or dark", label: "light or dark", id: "theme" }),
      button("?", () => (this.help as HTMLDialogElement).showModal(), { title: "keys", label: "keys", id: "keys" }),
    );
  }

  /** Events that have happened in what is shown. */
  get position(): number {
    return this.scrubber.position;
  }

  // -- doings

  select(id: number | undefined, how: { reveal?: boolean; centred?: boolean; quiet?: boolean } = {}): void {
    this.selected = id;
    if (id !== undefined && how.reveal) this.reveal(id);
    this.view.select(id);
    if (!how.quiet) this.panel.select(id);
    this.said.textContent = id === undefined ? "nothing selected" : this.model.label(id);
    if (id !== undefined && how.reveal) this.view.show(id, how);
  }

  private reveal(id: number): void {
    if (this.model.path(id).every((group) => this.scene.isOpen(group))) return;
    const stand = this.scene.visible(id);
    this.view.keeping(stand, () => {
      this.scene.reveal(id);
      this.scene.build();
    });
    this.tellShown();
  }

  toggle(group: number): void {
    this.view.keeping(group, () => {
      if (this.scene.isOpen(group)) this.scene.close(group);
      else this.scene.open(group);
      this.scene.build();
    });
    if (this.selected !== undefined && this.scene.visible(this.selected) !== this.selected) {
      this.select(this.scene.visible(this.selected));
    }
    this.tellShown();
  }

  openTo(depth: number): void {
    const anchor = this.selected ?? this.model.root;
    this.view.keeping(anchor, () => {
      this.scene.openTo(depth);
      this.scene.build();
    });
    if (this.selected === undefined) this.view.begin();
    else this.view.show(this.selected);
    this.tellShown();
  }

  /** Open the shallowest closed groups, or close the deepest open ones. */
  private level(way: 1 | -1): void {
    let depth = way > 0 ? Infinity : 0;
    for (const one of this.scene.shown) {
      if (way > 0 && !one.open && !this.model.isOp(one.id)) depth = Math.min(depth, this.model.depth[one.id]!);
      if (way < 0 && one.open) depth = Math.max(depth, this.model.depth[one.id]!);
    }
    if (way > 0 ? depth < Infinity : depth > 0) this.openTo(way > 0 ? depth + 1 : depth);
  }

  private moved(position: number, how: "step" | "play" | "slide"): void {
    const subject = this.timeline.at(position).map((one) => this.timeline.subject(one)).find((id) => id >= 0) ?? -1;
    this.view.setMoment(position, position < this.timeline.count ? subject : -1);
    this.panel.setMoment(position);
    if (how === "play" && subject >= 0 && this.scrubber.follows) this.view.show(subject);
    if (how === "step" && subject >= 0) {
      this.select(subject, { quiet: true });
      if (this.panel.element.querySelector('[data-tab="moment"][aria-pressed="true"]') === null) this.panel.select(subject);
      this.view.show(subject);
    }
  }

  private turn(): void {
    this.theme = this.theme === "dark" ? "light" : "dark";
    this.dress();
  }

  private dress(): void {
    const theme = THEMES[this.theme];
    document.documentElement.dataset["theme"] = this.theme;
    this.colours.use(this.by, theme);
    this.view.dress(theme);
    this.scrubber.draw(theme);
    const legend = this.colours.legend();
    const entries = legend.entries.map(([colour, text]) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = colour;
      return el("span", { class: "entry" }, swatch, text);
    });
    const scale = el("span", { class: "scale" });
    for (const colour of legend.scale ?? []) {
      const part = el("span");
      part.style.background = colour;
      scale.append(part);
    }
    const signs: [string, string][] = [];
    if (this.model.data.gradients.op.some((op) => op >= 0)) signs.push(["dot", "has a gradient"]);
    if (this.model.data.events.has_diary && this.model.data.firings.op.length) signs.push(["ring", "has fired"]);
    this.legend.replaceChildren(
      el("b", {}, legend.title),
      ...(legend.ends ? [el("span", { class: "entry" }, `${legend.ends[0]} `, scale, ` ${legend.ends[1]}`)] : []),
      ...entries,
      ...signs.map(([sign, text]) => el("span", { class: "entry" }, el("span", { class: sign }), text)),
    );
  }

  private tellShown(): void {
    const { scene, model } = this;
    let [ops, closed] = [0, 0];
    for (const one of scene.shown) {
      if (one.open) continue;
      if (!model.isOp(one.id)) closed++;
      else if (model.isComputing(one.id)) ops++;
    }
    const tooDeep = scene.shown.some((one) => !one.open && !model.isOp(one.id) && model.depth[one.id]! >= DEEPEST);
    const limit = tooDeep ? `; what is more than ${DEEPEST} levels deep stays closed` : "";
    this.shown.textContent = `${ops.toLocaleString("en")} of ${model.numOpsIn(model.root).toLocaleString("en")} ops shown${closed ? `, the others in ${closed.toLocaleString("en")} closed group${closed === 1 ? "" : "s"}` : ""}${limit}`;
  }

  // -- keys

  /** Who has chosen from a list with the mouse goes on with the keys of the picture; who walks along it with keys stays. */
  private leaveLists(host: HTMLElement): void {
    let byKey = false;
    const isList = (event: Event): boolean => event.target instanceof HTMLSelectElement;
    host.addEventListener("focusin", () => (byKey = false));
    host.addEventListener("pointerdown", () => (byKey = false));
    host.addEventListener("keydown", (event) => (byKey ||= isList(event)));
    host.addEventListener("change", (event) => {
      if (isList(event) && !byKey) this.view.canvas.focus();
    });
  }

  private pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if ((this.help as HTMLDialogElement).open) return;
    const kind = target instanceof HTMLInputElement ? target.type : target.tagName;
    if (kind === "search" && event.key !== "Escape") return;
    // A list takes letters, numbers, arrows and the like for itself.
    if (kind === "SELECT" && event.key !== "Escape" && !/^[,.<>/+=?-]$/.test(event.key)) return;
    if (kind === "range" && /^(Arrow|Page|Home|End)/.test(event.key)) return;
    if (kind === "checkbox" && event.key === " ") return;
    if (target.tagName === "BUTTON" && (event.key === " " || event.key === "Enter")) return;
    if (!this.does(event)) return;
    event.preventDefault();
  }

  private does(event: KeyboardEvent): boolean {
    const { key } = event;
    switch (key) {
      case "/":
        this.search.field.focus();
        this.search.field.select();
        return true;
      case "Escape":
        this.scrubber.pause();
        this.select(undefined);
        this.view.canvas.focus();
        return true;
      case "ArrowUp":
      case "ArrowDown":
      case "ArrowLeft":
      case "ArrowRight":
        this.walk(key, event.shiftKey);
        return true;
      case "Enter":
        if (this.selected === undefined || this.model.isOp(this.selected) || this.selected === this.model.root) return false;
        this.toggle(this.selected);
        this.panel.select(this.selected);
        return true;
      case "f":
      case "0":
        this.view.fit();
        return true;
      case "+":
      case "=":
        this.view.zoomBy(1.25);
        return true;
      case "-":
        this.view.zoomBy(0.8);
        return true;
      case "o":
        this.level(1);
        return true;
      case "c":
        this.level(-1);
        return true;
      case " ":
        this.scrubber.toggle();
        return true;
      case ",":
        this.scrubber.step(-1);
        return true;
      case ".":
        this.scrubber.step(1);
        return true;
      case "<":
        this.scrubber.happening(-1);
        return true;
      case ">":
        this.scrubber.happening(1);
        return true;
      case "?":
        (this.help as HTMLDialogElement).showModal();
        return true;
      default:
        return false;
    }
  }

  /** Along the data, through time, out of what holds the selection and into it. */
  private walk(key: string, shift: boolean): void {
    const { model, scene } = this;
    const boxes = scene.shown.filter((one) => !one.open).map((one) => one.id);
    const from = this.selected === undefined ? undefined : scene.visible(this.selected);
    let to: number | undefined;
    if (from === undefined) to = boxes[0];
    else if (shift && key === "ArrowUp") to = model.parent[from]! >= 0 ? model.parent[from] : undefined;
    else if (shift && key === "ArrowDown") {
      if (!model.isOp(from)) {
        to = model.children[from]![0];
        if (to !== undefined) this.reveal(to);
      }
    } else if (key === "ArrowUp" || key === "ArrowDown") {
      to = scene.neighbours(from, key === "ArrowUp" ? "parents" : "uses")[0];
    } else {
      const at = boxes.indexOf(from);
      to = at < 0 ? boxes[0] : boxes[at + (key === "ArrowRight" ? 1 : -1)];
    }
    if (to === undefined) return;
    this.select(to);
    this.view.show(to);
  }
}

declare global {
  interface Window {
    torchlens?: Told;
  }
}

const host = document.getElementById("torchlens")!;
const data = JSON.parse(document.getElementById("torchlens-data")!.textContent!) as PageData;
if (data.version !== 1) host.textContent = `This page has data of version ${data.version}, which its script does not know.`;
else window.torchlens = new Told(new Page(data, host));
