// What keys and the mouse do, in words.

import { el } from "./dom";

const KEYS: [string, string][] = [
  ["drag, wheel", "move, zoom"],
  ["click", "select"],
  ["double click, Enter", "open or close a module"],
  ["arrows", "to the op above, below, before, after"],
  ["Shift + up, down", "to what holds it, into it"],
  ["/", "search"],
  ["Esc", "let go"],
  ["f, + and −", "fit, zoom"],
  ["o, c", "one level more, one less"],
  ["Space", "play, pause"],
  [", and .", "one event back, on"],
  ["< and >", "to the last, next event that shows"],
];

/** The same as a list of terms. */
export function keyList(): HTMLElement {
  const made = el("dl", { class: "keys" });
  for (const [key, does] of KEYS) made.append(el("dt", {}, key), el("dd", {}, does));
  return made;
}
