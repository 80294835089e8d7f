// What is shown, in plain words: for the console, and for tests that click where something is.

import type { Page } from "./main";

export class Told {
  constructor(private readonly page: Page) {}

  /** Where something is on the screen: by its label, or that of what holds it. */
  where(label: string): { x: number; y: number; inSight: boolean } | null {
    const id = this.page.model.find(label);
    return id === undefined ? null : (this.page.view.where(id) ?? null);
  }

  /** What stands for something: its own label, or that of the closed module that holds it. */
  standsFor(label: string): string | null {
    const id = this.page.model.find(label);
    return id === undefined ? null : this.page.model.label(this.page.scene.visible(id));
  }

  /** Labels of all ops and closed modules that are shown. */
  shown(): string[] {
    return this.page.scene.shown.filter((one) => !one.open).map((one) => this.page.model.label(one.id));
  }

  selected(): string | null {
    return this.page.selected === undefined ? null : this.page.model.label(this.page.selected);
  }

  moment(): { position: number; ran: string[]; running: string[]; fired: [number, string][]; gradients: [number, string][]; dotted: string[] } {
    const { model, timeline } = this.page;
    const { firings, gradients } = model.data;
    const position = this.page.position;
    const ran: string[] = [];
    for (let op = 0; op < model.numOps; op++) if (timeline.hasRun(op, position)) ran.push(model.label(op));
    return {
      position,
      ran,
      dotted: ran.filter((label) => timeline.hasGradient(model.find(label)!, position)),
      running: timeline.running(position).map((call) => model.label(model.numOps + call)),
      fired: timeline.fired(position).map((row) => [firings.pass[row]!, model.text(firings.node[row])]),
      gradients: timeline
        .gradients(position)
        .map((row) => [gradients.pass[row]!, gradients.op[row]! >= 0 ? model.label(gradients.op[row]!) : model.text(gradients.param[row])]),
    };
  }

  get scale(): number {
    return this.page.view.scale;
  }

  /** Milliseconds that drawing took, of the last frames. */
  get frames(): number[] {
    return this.page.view.frames;
  }

  /** How many pairs of shown boxes overlap; none should. */
  overlaps(): number {
    const boxes = this.page.scene.shown.filter((one) => !one.open).sort((a, b) => a.y - b.y);
    let found = 0;
    boxes.forEach((one, at) => {
      for (let other = at + 1; other < boxes.length && boxes[other]!.y < one.y + one.h - 0.5; other++) {
        const two = boxes[other]!;
        if (two.x < one.x + one.w - 0.5 && one.x < two.x + two.w - 0.5) found++;
      }
    });
    return found;
  }
}
