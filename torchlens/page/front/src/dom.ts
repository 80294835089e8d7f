// Elements, made without markup: every text is text.

type Child = Node | string | null | undefined | false;
type Options = { class?: string; title?: string; id?: string; type?: string; label?: string; pressed?: boolean };

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  options: Options = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (options.class) made.className = options.class;
  if (options.title) made.title = options.title;
  if (options.id) made.id = options.id;
  if (options.type) made.setAttribute("type", options.type);
  if (options.label) made.setAttribute("aria-label", options.label);
  if (options.pressed !== undefined) made.setAttribute("aria-pressed", String(options.pressed));
  for (const child of children) if (child) made.append(child);
  return made;
}

export function button(text: string, does: () => void, options: Options = {}): HTMLButtonElement {
  const made = el("button", { type: "button", ...options }, text);
  made.addEventListener("click", does);
  return made;
}

/** One of the choices of a select, which gives `value` for it. */
export function option(text: string, value: string | number): HTMLOptionElement {
  const made = el("option", {}, text);
  made.value = String(value);
  return made;
}

export function svg(tag: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}
