// The fonts of the canvas: boxes are measured with those that their texts are drawn in.

/** Of the name of an op or a group. */
export const TITLE_FONT = "600 12px system-ui, sans-serif";

/** Of the line below or beside it. */
export const LINE_FONT = "11px system-ui, sans-serif";

/** Of a name that is drawn from afar, where boxes have no text. */
export const NAME_FONT = "600 11px system-ui, sans-serif";
