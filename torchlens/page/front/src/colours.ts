// The colour of each op and group, by what a person asks to see, and the legend that says what they mean.

import type { Model } from "./model";
import { bytes, flops, seconds, short } from "./format";

export type By = "type" | "time" | "flops" | "memory" | "gradient";
export const BYS: [By, string][] = [
  ["type", "type"],
  ["time", "time"],
  ["flops", "FLOPs"],
  ["memory", "memory"],
  ["gradient", "gradient"],
];

export interface Theme {
  back: string;
  group: string[]; // of open groups, by depth in turn
  groupLine: string;
  header: string;
  closed: string;
  closedLine: string;
  text: string;
  faint: string;
  edge: string;
  strong: string; // what is selected and what is running
  running: string;
  fired: string;
  gradient: string;
  failed: string;
  failedText: string;
  unknown: string;
  families: Record<string, string>;
  scale: [number, number, number][]; // from little to much
}

const FAMILIES: [string, string, string, RegExp][] = [
  // name, light, dark, of which types
  ["input, output", "#d3d9e2", "#4a5565", /^(input|output)/],
  ["buffer", "#e6dcc8", "#5d5139", /^buffer/],
  ["attention", "#f0b8d8", "#8a3f6c", /attention|sdpa/],
  ["linear, matmul", "#b4cdf7", "#2f5597", /linear|matmul|^bmm|^mm$|addmm|baddbmm|einsum|^mv$|^dot$|tensordot|bilinear/],
  ["convolution", "#bfc0f5", "#4a489c", /conv/],
  ["normalisation", "#b9e3bd", "#2c6b3a", /norm/],
  ["activation", "#fbc99b", "#8e5320", /relu|gelu|silu|sigmoid|tanh|softmax|softplus|mish|elu|hardswish|swish|glu/],
  ["recurrent", "#a8e0dd", "#1f6a68", /lstm|gru|rnn/],
  ["pooling, sampling", "#d6ecaa", "#5b7320", /pool|interpolate|upsample|pad|unfold|fold|grid/],
  ["lookup", "#f3e08f", "#7c6a14", /embedding|gather|index|scatter|take|getitem|select|where|masked|one_hot/],
  ["dropout", "#e4e0f0", "#504a63", /dropout/],
  ["reduction, loss", "#f5b5ae", "#8f3d35", /loss|entropy|^sum|^mean|^max|^min|^amax|^amin|^std|^var|argm|^prod|^all$|^any$|logsumexp|cumsum|topk/],
  ["arithmetic", "#ead0b6", "#6e5236", /add|sub|mul|div|pow|sqrt|^exp(?!and)|log|neg|abs|clamp|sin$|cos$|^lt|^gt|^le|^ge|^eq|^ne|floor|round|square|^bitwise|erf|sign/],
  ["shape", "#dfe3e8", "#3f4854", /view|reshape|permute|transpose|flatten|squeeze|cat|stack|split|chunk|expand|contiguous|^t$|repeat|narrow|slice|unbind|roll|flip|clone|detach|^to$|type|float|copy/],
  ["other", "#e9e4dd", "#4d4740", /^/],
];

const SHARED = {
  light: {
    back: "#ffffff",
    group: ["#ffffff", "#f6f7f9", "#eef0f4", "#f6f7f9"],
    groupLine: "#b6bfcc",
    header: "#e4e8ee",
    closed: "#e8ecf3",
    closedLine: "#8a97ab",
    text: "#1b2430",
    faint: "#5a6675",
    edge: "#8d99a8",
    strong: "#0b57d0",
    running: "#b26a00",
    fired: "#7b2fbe",
    gradient: "#7b2fbe",
    failed: "#c62828",
    failedText: "#ffffff",
    unknown: "#eceff3",
    scale: [
      [255, 247, 220],
      [250, 190, 110],
      [200, 60, 60],
      [110, 15, 70],
    ],
  },
  dark: {
    back: "#14181f",
    group: ["#14181f", "#1a2029", "#212834", "#1a2029"],
    groupLine: "#465163",
    header: "#2a3341",
    closed: "#2b3544",
    closedLine: "#6a7a92",
    text: "#e9edf3",
    faint: "#a9b4c3",
    edge: "#6d7a8c",
    strong: "#7fb0ff",
    running: "#ffb74d",
    fired: "#cf9bff",
    gradient: "#cf9bff",
    failed: "#d84343",
    failedText: "#ffffff",
    unknown: "#262d38",
    scale: [
      [48, 40, 66],
      [120, 40, 100],
      [215, 85, 70],
      [252, 200, 110],
    ],
  },
} as const;

function themeOf(name: "light" | "dark"): Theme {
  const families = Object.fromEntries(FAMILIES.map(([family, light, dark]) => [family, name === "light" ? light : dark]));
  const shared = SHARED[name];
  return { ...shared, group: [...shared.group], scale: shared.scale.map((one) => [...one] as [number, number, number]), families };
}

export const THEMES = { light: themeOf("light"), dark: themeOf("dark") };

const WORDS = { time: seconds, flops, memory: bytes, gradient: short };

function larger(one: number | null, other: number | null): number | null {
  return one === null || (other !== null && other > one) ? other : one;
}

export interface Legend {
  title: string;
  entries: [string, string][]; // colour, what it means
  scale: string[] | null; // colours from little to much
  ends: [string, string] | null;
}

export class Colours {
  by: By = "type";
  private readonly family: string[];
  private readonly families = new Set<string>();
  private least = 0;
  private most = 0;
  private amounts: (number | null)[] = [];
  private readonly cached = new Map<number, string>();
  private readonly said = new Map<number, string>();
  private theme: Theme = THEMES.light;

  constructor(private readonly model: Model) {
    const known = new Map<string, string>();
    this.family = model.data.ops.type.map((type, op) => {
      const kind = model.text(model.data.ops.kind[op]);
      const name = kind === "input" || kind === "output" || kind === "buffer" ? kind : model.text(type).toLowerCase();
      let family = known.get(name);
      if (family === undefined) {
        family = FAMILIES.find(([, , , of]) => of.test(name))![0];
        known.set(name, family);
      }
      if (!model.isRed(op)) this.families.add(family);
      return family;
    });
  }

  use(by: By, theme: Theme): void {
    this.by = by;
    this.theme = theme;
    this.cached.clear();
    this.said.clear();
    if (by === "type") return;
    this.amounts = Array.from({ length: this.model.numOps }, (_, op) => this.amountOf(op));
    // No group has more than those directly in the root.
    const groups = this.model.children[this.model.root]!.filter((id) => !this.model.isOp(id));
    const all = [...this.amounts, ...groups.map((id) => this.amount(id))];
    const known = all.filter((value): value is number => value !== null && value > 0);
    this.least = known.reduce((a, b) => Math.min(a, b), Infinity);
    this.most = known.reduce((a, b) => Math.max(a, b), 0);
  }

  /** Of an op, or of all in a group together; its largest gradient. */
  private amount(id: number): number | null {
    const { model } = this;
    if (model.isOp(id)) return this.amounts[id] ?? null;
    if (this.by === "time") return model.time(id);
    if (this.by === "flops") return model.flops(id);
    if (this.by === "memory") return model.memory(id);
    let most: number | null = null;
    for (const op of model.opsIn(id)) most = larger(most, this.amounts[op]!);
    return most;
  }

  private amountOf(op: number): number | null {
    switch (this.by) {
      case "type":
        return null;
      case "time":
        return this.model.time(op);
      case "flops":
        return this.model.flops(op);
      case "memory":
        return this.model.memory(op);
      case "gradient": {
        let size: number | null = null;
        for (const row of this.model.gradientsOfOp[op]!) {
          const values = this.model.values(this.model.data.gradients.values[row]);
          if (typeof values?.min === "number" && typeof values.max === "number") {
            size = Math.max(size ?? 0, Math.abs(values.min), Math.abs(values.max));
          }
        }
        return size;
      }
    }
  }

  /** What a colour stands for in words; null where colours tell types. */
  words(id: number): string | null {
    if (this.by === "type") return null;
    let words = this.said.get(id);
    if (words === undefined) {
      const amount = this.amount(id);
      words = amount === null ? "" : WORDS[this.by](amount);
      this.said.set(id, words);
    }
    return words;
  }

  /** The colour of what nothing is known of. */
  get unknown(): string {
    return this.theme.unknown;
  }

  /** Colour of an op or a closed group. */
  of(id: number): string {
    let colour = this.cached.get(id);
    if (colour === undefined) this.cached.set(id, (colour = this.made(id)));
    return colour;
  }

  private made(id: number): string {
    const { model, theme } = this;
    if (model.isRed(id)) return theme.failed;
    if (model.isOp(id)) {
      return this.by === "type" ? theme.families[this.family[id]!]! : this.scaled(this.amounts[id]!);
    }
    if (this.by !== "type") return this.scaled(this.amount(id));
    const ops = model.opsIn(id);
    return ops.length === 1 ? this.of(ops[0]!) : theme.closed;
  }

  private scaled(amount: number | null): string {
    if (amount === null) return this.theme.unknown;
    return mixed(this.theme.scale, this.part(amount));
  }

  /** Where an amount stands between the least and the most, by its logarithm. */
  private part(amount: number): number {
    if (amount <= 0) return 0;
    if (this.most <= this.least) return 1;
    const span = Math.max(Math.log(this.most / this.least), Math.log(10));
    return Math.max(0, Math.min(1, 1 - Math.log(this.most / amount) / span));
  }

  legend(): Legend {
    const { theme } = this;
    if (this.by === "type") {
      const entries = FAMILIES.filter(([name]) => this.families.has(name)).map(
        ([name]): [string, string] => [theme.families[name]!, name],
      );
      return { title: "type", entries, scale: null, ends: null };
    }
    const words = WORDS[this.by];
    const title = { time: "time in torch calls", flops: "FLOPs", memory: "memory", gradient: "largest gradient" }[this.by];
    if (this.most === 0) return { title, entries: [[theme.unknown, "not known"]], scale: null, ends: null };
    return {
      title,
      entries: this.amounts.some((one) => one === null) ? [[theme.unknown, "not known"]] : [],
      scale: [0, 0.25, 0.5, 0.75, 1].map((part) => mixed(theme.scale, part)),
      ends: [words(this.least), words(this.most)],
    };
  }
}

function mixed(scale: [number, number, number][], part: number): string {
  const at = Math.min(scale.length - 2, Math.floor(part * (scale.length - 1)));
  const rest = part * (scale.length - 1) - at;
  const [a, b] = [scale[at]!, scale[at + 1]!];
  const [r, g, bl] = a.map((one, k) => Math.round(one + (b[k]! - one) * rest)) as [number, number, number];
  return `#${((1 << 24) | (r << 16) | (g << 8) | bl).toString(16).slice(1)}`;
}

/** Black or white, whichever can be read on a colour like #rrggbb. */
export function inkOn(colour: string): string {
  let ink = inks.get(colour);
  if (ink === undefined) {
    const number = parseInt(colour.slice(1), 16);
    const light = 0.299 * (number >> 16) + 0.587 * ((number >> 8) & 255) + 0.114 * (number & 255);
    inks.set(colour, (ink = light > 140 ? "#1b2430" : "#f4f6f9"));
  }
  return ink;
}

const inks = new Map<string, string>();
