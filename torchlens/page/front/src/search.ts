// Search: ops, modules, functions and parameters by parts of their names.

import { el } from "./dom";
import { type Model, pushTo } from "./model";

interface Entry {
  text: string;
  low: string;
  kind: string;
  ids: number[];
}

const MOST_SHOWN = 40;

export class Search {
  readonly element = el("div", { class: "search" });
  readonly field = el("input", { type: "search", label: "search", id: "search" });
  private readonly list = el("ul", { id: "hits", class: "hits" });
  private readonly said = el("span", { class: "said" });
  private entries: Entry[] | null = null;
  private hits: { entry: Entry; id: number }[] = [];
  private at = -1;

  constructor(
    private readonly model: Model,
    private readonly found: (id: number) => void,
    private readonly left: () => void,
  ) {
    this.field.placeholder = "search ops, modules, functions, parameters  ( / )";
    this.field.autocomplete = "off";
    this.field.spellcheck = false;
    this.field.setAttribute("role", "combobox");
    this.field.setAttribute("aria-controls", "hits");
    this.list.setAttribute("role", "listbox");
    this.said.setAttribute("aria-live", "polite");
    this.element.append(this.field, this.list, this.said);
    this.field.addEventListener("input", () => this.look());
    this.field.addEventListener("focus", () => this.look());
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    // Not at once: the list may be what is clicked. And not if somebody has come back meanwhile.
    this.field.addEventListener("blur", () =>
      setTimeout(() => {
        if (document.activeElement !== this.field) this.hide();
      }, 200),
    );
    this.hide();
  }

  private all(): Entry[] {
    if (this.entries) return this.entries;
    const { model } = this;
    const { ops, calls, places } = model.data;
    const entries: Entry[] = [];
    const add = (text: string, kind: string, ids: number[]): void => {
      if (text) entries.push({ text, low: text.toLowerCase(), kind, ids });
    };
    const modules = new Map<string, number[]>();
    const classes = new Map<string, number[]>();
    for (let call = 0; call < model.numCalls; call++) {
      pushTo(modules, model.text(calls.address[call]), model.numOps + call);
      pushTo(classes, model.text(calls.class[call]), model.numOps + call);
    }
    for (const [address, ids] of modules) add(address, "module", ids);
    for (const [name, ids] of classes) add(name, "class", ids);
    const functions = new Map<string, number[]>();
    for (let op = 0; op < model.numOps; op++) {
      add(model.label(op), model.text(ops.kind[op]), [op]);
      const at = ops.place[op];
      const place = at === null || at === undefined ? undefined : places[at];
      if (place?.function) pushTo(functions, place.function, op);
    }
    for (const [name, ids] of functions) add(name, "function", ids);
    for (const [address, ids] of model.opsOfParam) add(address, "parameter", ids);
    return (this.entries = entries);
  }

  private look(): void {
    const wanted = this.field.value.trim().toLowerCase();
    if (!wanted) {
      this.hits = [];
      this.at = -1;
      this.said.textContent = "";
      this.hide();
      return;
    }
    const ranked: [number, Entry][] = [];
    for (const entry of this.all()) {
      const at = entry.low.indexOf(wanted);
      if (at < 0) continue;
      const edge = at === 0 || !/[a-z0-9]/.test(entry.low[at - 1]!);
      ranked.push([(entry.low === wanted ? 0 : at === 0 ? 1 : edge ? 2 : 3) * 1000 + Math.min(999, entry.low.length), entry]);
    }
    ranked.sort((a, b) => a[0] - b[0]);
    this.hits = [];
    let more = 0;
    for (const [, entry] of ranked) {
      for (const id of entry.ids) {
        if (this.hits.length < MOST_SHOWN) this.hits.push({ entry, id });
        else more++;
      }
    }
    this.at = this.hits.length ? 0 : -1;
    this.show(more);
  }

  private show(more: number): void {
    this.list.replaceChildren(
      ...this.hits.map(({ entry, id }, at) => {
        const { model } = this;
        const where = entry.kind === "op" || entry.kind === "module" ? "" : model.label(id);
        const inside = model.callAbove(id);
        const holder = inside >= 0 && inside !== model.root ? model.text(model.data.calls.address[model.call(inside)]) : "";
        const note = where || (entry.ids.length > 1 ? model.label(id) : holder ? `in ${holder}` : "");
        const item = el(
          "li",
          {},
          el("span", { class: "kind" }, entry.kind),
          el("span", { class: "name" }, entry.text),
          el("span", { class: "note" }, note),
        );
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", String(at === this.at));
        item.addEventListener("pointerdown", (event) => {
          event.preventDefault();
          this.take(at);
        });
        return item;
      }),
      ...(this.hits.length ? [] : [el("li", { class: "none" }, "nothing is called so")]),
      ...(more ? [el("li", { class: "none" }, `and ${more.toLocaleString("en")} more`)] : []),
    );
    this.list.hidden = false;
    this.field.setAttribute("aria-expanded", "true");
    this.said.textContent = `${this.hits.length + more} found`;
  }

  private pressed(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      this.field.value = "";
      this.hide();
      this.left();
    } else if (event.key === "Enter") {
      if (this.at >= 0) this.take(this.at);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!this.hits.length) return;
      this.at = (this.at + (event.key === "ArrowDown" ? 1 : -1) + this.hits.length) % this.hits.length;
      [...this.list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === this.at)));
      this.list.children[this.at]!.scrollIntoView({ block: "nearest" });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private take(at: number): void {
    const { id } = this.hits[at]!;
    this.hide();
    this.found(id);
    this.left();
  }

  private hide(): void {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
  }
}
