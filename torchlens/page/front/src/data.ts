// The data of a page as it stands in the file: columns of equal length. Made by torchlens/page/data.py; docs/page.md
// describes every column. A number in a column of texts counts in `texts`; null is what is not known.

export type Text = number | null;
export type Maybe = number | null;

export interface Values {
  min?: Maybe;
  max?: Maybe;
  mean?: Maybe;
  std?: Maybe;
  nan?: Maybe;
  inf?: Maybe;
  count?: Maybe;
  low?: Maybe;
  high?: Maybe;
  bars?: number[] | null;
}

export interface Place {
  file: string;
  line: number;
  function: string;
  lines: [number, string][];
}

export interface PageData {
  version: number;
  title: string;
  model: string;
  status: string;
  ending: null | { kind: string; message: string | null; where: string | null; op?: Maybe };
  facts: [string, string][];
  texts: string[];
  calls: {
    label: Text[];
    address: Text[];
    class: Text[];
    parent: number[];
    time: Maybe[];
    flops: Maybe[];
    params: Maybe[];
    entered: Maybe[];
    left: Maybe[];
    shape: Text[];
  };
  ops: {
    label: Text[];
    kind: Text[];
    type: Text[];
    call: number[];
    shape: Text[];
    dtype: Text[];
    time: Maybe[];
    flops: Maybe[];
    memory: Maybe[];
    place: Maybe[];
    layer: Text[];
    pass: Maybe[];
    passes: Maybe[];
    marks: (number[] | null)[];
    params: (number[] | null)[];
    event: Maybe[];
    origin: number[]; // the op whose gradients are this one's: of an output the one whose value it is, else itself
    values: Maybe[];
    args: Text[];
  };
  edges: { from: number[]; to: number[] };
  places: Place[];
  values: Values[];
  gradients: {
    op: number[];
    param: Text[];
    pass: number[];
    event: Maybe[];
    shape: Text[];
    values: Maybe[];
    kept: boolean[];
  };
  passes: {
    label: Text[];
    status: Text[];
    error?: Text[]; // what a pass raised
    raised_in?: Text[]; // the autograd node that raised
    op?: number[]; // its op; -1 for none
    trigger: Text[];
    begun: Maybe[];
    ended: Maybe[];
  };
  firings: { pass: number[]; event: Maybe[]; node: Text[]; type: Text[]; op: number[]; param?: Text[]; time: Maybe[] };
  events: { count: number; has_diary: boolean; times?: Maybe[] | null };
}
