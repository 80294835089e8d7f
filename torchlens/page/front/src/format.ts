// Numbers for people.

export const NOT_KNOWN = "not known";

export function seconds(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  const [scale, unit] = value < 1e-3 ? [1e6, "µs"] : value < 1 ? [1e3, "ms"] : [1, "s"];
  return `${short(value * scale)} ${unit}`;
}

export function bytes(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

export function flops(value: number | null): string {
  if (value === null) return NOT_KNOWN;
  return scaled(value, 1000, ["FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NOT_KNOWN : value.toLocaleString("en");
}

function scaled(value: number, base: number, units: string[]): string {
  let at = 0;
  while (Math.abs(value) >= base && at < units.length - 1) {
    value /= base;
    at++;
  }
  return `${at ? short(value) : count(value)} ${units[at]}`;
}

export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return Number(value.toPrecision(size >= 1000 ? 5 : 3)).toLocaleString("en", { maximumSignificantDigits: 5 });
}
