// Numbers for people.
//
// Rule  Amounts have the units and digits that Python says them with (projections/wording.py): tests hold both to one table.

export const NOT_KNOWN = "not known";

const PREFIXES = ["", "K", "M", "G", "T", "P"];

export function seconds(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  if (value === 0) return "0 s";
  for (const [factor, unit] of [[1e9, "ns"], [1e6, "us"], [1e3, "ms"]] as const) {
    if (Math.abs(value) * factor < 999.5) return `${threeDigits(value * factor)} ${unit}`;
  }
  if (Math.abs(value) < 60) return `${threeDigits(value)} s`;
  return Math.abs(value) < 3600 ? `${rounded(value / 60, 1)} min` : `${rounded(value / 3600, 1)} h`;
}

export function bytes(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  if (Math.abs(value) < 1024) return `${Math.trunc(value)} B`;
  for (const prefix of PREFIXES.slice(1, 4)) {
    value /= 1024;
    if (Math.abs(value) < 1023.95) return `${rounded(value, 1)} ${prefix}B`;
  }
  return `${rounded(value / 1024, 1)} TB`;
}

export function flops(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  if (Math.abs(value) < 1000) return `${Math.trunc(value)} FLOPs`;
  for (const prefix of PREFIXES.slice(1)) {
    value /= 1000;
    if (Math.abs(value) < 999.5) return `${threeDigits(value)} ${prefix}FLOPs`;
  }
  return `${Number(rounded(value, 0)).toLocaleString("en")} PFLOPs`;
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NOT_KNOWN : value.toLocaleString("en");
}

function threeDigits(value: number): string {
  const power = Number(value.toExponential().split("e")[1]);
  return String(Number(rounded(value, Math.min(Math.max(2 - power, 0), 40))));
}

/** With so many digits after the point. What lies just between two goes to the even one, as in Python; toFixed takes the larger. */
function rounded(value: number, digits: number): string {
  const larger = value.toFixed(digits);
  const exact = value.toFixed(100);
  const end = exact.indexOf(".") + 1 + digits;
  const between = /^50*$/.test(exact.slice(end));
  const lower = exact.slice(0, digits ? end : end - 1);
  return between && "02468".includes(lower.at(-1)!) ? lower : larger;
}

export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return Number(value.toPrecision(size >= 1000 ? 5 : 3)).toLocaleString("en", { maximumSignificantDigits: 5 });
}
