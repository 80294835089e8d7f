// A small picture of all that is shown, with a frame around what is in sight; clicking or dragging in it goes there.

import type { Theme } from "./colours";
import type { Scene } from "./scene";

const WIDEST = 170;
const HIGHEST = 120;

export interface Sight {
  x: number;
  y: number;
  w: number;
  h: number;
}

export class Overview {
  readonly canvas = document.createElement("canvas");
  private readonly picture = document.createElement("canvas");
  private scale = 1;
  private w = 1;
  private h = 1;
  private isStale = true;

  constructor(
    private readonly scene: Scene,
    private readonly goTo: (x: number, y: number) => void,
  ) {
    this.canvas.id = "overview";
    this.canvas.setAttribute("aria-hidden", "true");
    const go = (event: PointerEvent): void => {
      const frame = this.canvas.getBoundingClientRect();
      this.goTo((event.clientX - frame.left) / this.scale, (event.clientY - frame.top) / this.scale);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) go(event);
    });
  }

  /** The scene, or how it is coloured, is another one. */
  changed(): void {
    this.isStale = true;
  }

  draw(sight: Sight, theme: Theme, colour: (id: number) => string): void {
    const { scene, canvas } = this;
    const isWhole = sight.x <= 0 && sight.y <= 0 && sight.x + sight.w >= scene.w && sight.y + sight.h >= scene.h;
    canvas.hidden = isWhole;
    if (isWhole) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.isStale) this.paint(theme, colour, ratio);
    const c = canvas.getContext("2d")!;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.drawImage(this.picture, 0, 0);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.strokeStyle = theme.strong;
    c.lineWidth = 1.5;
    const left = Math.max(1, sight.x * this.scale);
    const top = Math.max(1, sight.y * this.scale);
    const right = Math.min(this.w - 1, (sight.x + sight.w) * this.scale);
    const bottom = Math.min(this.h - 1, (sight.y + sight.h) * this.scale);
    if (right > left && bottom > top) c.strokeRect(left, top, right - left, bottom - top);
  }

  private paint(theme: Theme, colour: (id: number) => string, ratio: number): void {
    const { scene, picture, canvas } = this;
    this.isStale = false;
    this.scale = Math.min(WIDEST / scene.w, HIGHEST / scene.h);
    this.w = Math.max(24, scene.w * this.scale);
    this.h = Math.max(24, scene.h * this.scale);
    for (const one of [picture, canvas]) {
      one.width = Math.round(this.w * ratio);
      one.height = Math.round(this.h * ratio);
    }
    canvas.style.width = `${this.w}px`;
    canvas.style.height = `${this.h}px`;
    const c = picture.getContext("2d", { alpha: false })!;
    c.fillStyle = theme.back;
    c.fillRect(0, 0, picture.width, picture.height);
    const scale = this.scale * ratio;
    for (const { id, x, y, w, h, open, depth } of scene.shown) {
      c.fillStyle = open ? theme.group[depth % theme.group.length]! : colour(id);
      c.fillRect(x * scale, y * scale, Math.max(1, w * scale), Math.max(1, h * scale));
      if (open && w * scale > 6 && h * scale > 6) {
        c.strokeStyle = theme.groupLine;
        c.lineWidth = 0.5;
        c.strokeRect(x * scale, y * scale, w * scale, h * scale);
      }
    }
  }
}
