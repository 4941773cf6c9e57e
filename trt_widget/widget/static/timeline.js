// The timeline of a build: an icicle, drawn on a canvas from columns of numbers. ../timeline.py says what there is;
// this module lays it out and draws it. Names come from model files and from TensorRT: they go through `textContent`,
// `fillText` or an escape into SVG, and are never parsed as HTML.

/** @import { AnyModel, Initialize, Render } from "@anywidget/types" */

/**
 * The trait `data`. While the build runs it has `live` and `name` only; what else there is comes in messages.
 *
 * @typedef {object} Data
 * @property {boolean} [live]
 * @property {string} [name] of what is built: untrusted
 * @property {string} [status] of the build
 * @property {number} [now] seconds since the origin at which it ended
 * @property {number} [dropped] phases that are not kept one by one
 * @property {string[]} [names] the last name of every path: untrusted
 * @property {Binary} [parents] the row of the path above each, or -1
 * @property {Binary[]} [columns] of the spans, as in COLUMNS
 * @property {Binary[]} [silences] times without a callback, as in SILENCES
 */

/**
 * What the kernel sends while the build runs. Its buffers: the parents of the new names, the numbers of the spans that
 * have changed, the columns of those, the columns of the new spans, and the silences if there are new ones.
 *
 * @typedef {object} Message
 * @property {string} kind "spans"
 * @property {number} now
 * @property {number | null} silent_since time of the last callback, if that is long ago
 * @property {string} status
 * @property {number} dropped
 * @property {number} names_first
 * @property {string[]} names
 * @property {number} first number of the first new span
 * @property {number} count
 * @property {number} changed
 * @property {boolean} silences
 */

/** @typedef {DataView | ArrayBuffer | ArrayBufferView} Binary */
/** @typedef {{data: Data, channel: string | null}} TimelineState */
/** @typedef {{send(content: object): void, comm_live?: boolean}} Channel */
/** @typedef {[node: number, start: number, end: number]} Silence */

const STATUS = ["running", "done", "cancelled", "failed", "ended"];
const RUNNING = 0;
const DONE = 1;
/** What a phase has come to, as a sign: colour only repeats it. */
const SIGN = ["● ", "", "■ ", "✕ ", "– "];
/** Hierarchies that run at the same time are drawn one below the other, up to so many. */
const MAX_LANES = 64;
const PATH_SEPARATOR = " > ";
const MAX_PATH = 1000;

const ROW = 20;
const AXIS = 20;
/** Rows that are seen without scrolling. */
const MAX_ROWS_SEEN = 18;
/** Phases that are narrower than this and follow each other are drawn as one. */
const NARROW_PX = 1.5;
const SHORTEST_WINDOW_S = 2e-6;
const ZOOM_STEP = 1.5;
const ZOOM_MS = 160;
/** A view says that it looks, this often; the kernel forgets it after four times as long. */
const LOOK_MS = 15_000;
/** ... and this often while there is no answer: the first may have gone to a shell that is busy with a cell. */
const ASK_MS = 2000;
/** A kernel sends something every 2 s while it builds; clocks stop after this long without. */
const QUIET_S = 8;
const LONGEST = 20;
const MAX_SVG_BYTES = 900_000;
const MAX_SVG_ROWS = 120;

// ------------------------------------------------------------------------------------------------------------- text

const whole = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** A time in the unit that people would use. @param {number} seconds */
export function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 5e-7) return "0 s";
  if (s < 1e-3) return `${Math.round(s * 1e6)} µs`;
  if (s < 0.9995) return `${(s * 1e3).toPrecision(3).replace(/\.0+$/, "")} ms`;
  if (s < 59.95) return `${s < 9.995 ? s.toFixed(2) : s.toFixed(1)} s`;
  const all = Math.round(s);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  return h > 0 ? `${h}:${two(m)}:${two(all % 60)} h` : `${m}:${two(all % 60)} min`;
}

/** A moment, as exactly as `step` needs it. @param {number} seconds @param {number} step */
function moment(seconds, step) {
  if (seconds >= 60 && step >= 1) return duration(seconds);
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return `${seconds.toFixed(digits)} s`;
}

/** @param {number} count @param {string} noun */
function plural(count, noun) {
  return `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number} part */
function percent(part) {
  if (part > 0 && part < 0.001) return "< 0.1 %";
  return `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
}

/** @param {number} n */
function steps(n) {
  return Math.abs(n) < 10_000 ? String(n) : compact.format(n);
}

/** A name on one line, without signs that control anything. @param {string} name @param {number} [most] */
function line(name, most = 200) {
  // Controls, marks and overrides of direction, halves of characters, and what XML cannot hold.
  const plain = name
    .slice(0, 4 * most)
    .replace(/\s+/g, " ")
    .replace(/[\p{Cc}\p{Cf}\p{Cs}\ufffe\uffff]/gu, (sign) => (sign === "\u200d" || sign === "\u200c" ? sign : "\ufffd"))
    .trim();
  if (plain === "") return "(no name)";
  return plain.length <= most ? plain : `${cut(plain, most - 1)}…`;
}

/** The first characters, and no half of one. @param {string} text @param {number} length */
function cut(text, length) {
  const part = text.slice(0, Math.max(0, length));
  return /[\ud800-\udbff]$/.test(part) ? part.slice(0, -1) : part;
}

const RIGHT_TO_LEFT = /^[^\p{L}]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/u;

/** A name inside another text keeps its own direction. @param {string} name */
function isolated(name) {
  return `\u2068${name}\u2069`;
}

/** @param {string} text */
function escape(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

// ----------------------------------------------------------------------------------------------------------- numbers

/** @param {Binary} binary @returns {ArrayBuffer} a copy, which starts where numbers may start */
function copied(binary) {
  if (binary instanceof ArrayBuffer) return binary;
  const { buffer, byteOffset, byteLength } = binary;
  return /** @type {ArrayBuffer} */ (buffer).slice(byteOffset, byteOffset + byteLength);
}

/** @typedef {Float64ArrayConstructor | Float32ArrayConstructor | Int32ArrayConstructor | Uint16ArrayConstructor | Uint8ArrayConstructor} Kind */
/** The columns of the spans in the order of ../timeline.py. @type {readonly Kind[]} */
const COLUMNS = [Uint16Array, Int32Array, Float64Array, Float64Array, Float32Array, Float32Array, Float32Array, Uint8Array];
/** @type {readonly Kind[]} */
const SILENCES = [Uint16Array, Float64Array, Float64Array];

/** @param {readonly Kind[]} kinds @param {Binary[]} buffers @returns {ArrayLike<number>[]} */
function decoded(kinds, buffers) {
  return kinds.map((kind, i) => {
    const buffer = buffers[i];
    return buffer ? new kind(copied(buffer)) : new kind(0);
  });
}

// A function for each kind of array, so that the engine compiles each to a plain load.

/** @param {Float64Array} array @param {number} index */
function real(array, index) {
  return /** @type {number} */ (array[index]);
}

/** @param {Int32Array} array @param {number} index */
function int(array, index) {
  return /** @type {number} */ (array[index]);
}

/** @param {ArrayLike<number>} array @param {number} index */
function any(array, index) {
  return array[index] ?? 0;
}

/** @template {Float64Array | Int32Array} A @param {A} array @param {number} length @returns {A} */
function grown(array, length) {
  if (length <= array.length) return array;
  const larger = /** @type {A} */ (new /** @type {any} */ (array.constructor)(Math.max(length, 2 * array.length)));
  larger.set(array);
  return larger;
}

// ------------------------------------------------------------------------------------------------------------ spans

/** A row of the picture: spans of one level of one lane, which do not overlap, in order. */
class Row {
  count = 0;
  items = new Int32Array(16);
  /** For each item the sum over those before it of their durations, */
  busy = new Float64Array(16);
  /** ... the number of those whose outcome is not "done", */
  odd = new Int32Array(16);
  /** ... and how often the name changed up to it. */
  changes = new Int32Array(16);

  /** @param {number} lane @param {number} depth */
  constructor(lane, depth) {
    this.lane = lane;
    this.depth = depth;
  }
}

/** All that is known of the phases, laid out in rows. Times are seconds since the origin. */
export class Spans {
  count = 0;
  /** @type {string[]} */
  names = [];
  /** @type {number[]} */
  above = [];
  /** Seconds of each path's own. @type {number[]} */
  own = [];
  node = new Int32Array(64);
  parent = new Int32Array(64);
  start = new Float64Array(64);
  /** Negative while it is open. */
  end = new Float64Array(64);
  self = new Float64Array(64);
  steps = new Float64Array(64);
  total = new Float64Array(64);
  status = new Int32Array(64);
  depth = new Int32Array(64);
  lane = new Int32Array(64);
  /** Where it stands among the items of its row. */
  place = new Int32Array(64);
  /** The rows from the top down. @type {Row[]} */
  rows = [];
  /** The spans that are open. @type {Set<number>} */
  open = new Set();
  /** Spans that are not drawn, since too many run at the same time. */
  crowded = 0;
  /** The latest time that is known of. */
  latest = 0;
  /** Durations of the roots that have ended. */
  #roots = 0;
  /** @type {Map<number, Row>} */
  #row = new Map();
  /** @type {number[][]} */
  #stacks = [[]];

  /** @param {string} name @param {number} parent */
  addName(name, parent) {
    // The kernel has cut it to some 200 characters, which here may be two units each.
    this.names.push(line(name, 500));
    this.above.push(parent < this.names.length - 1 ? parent : -1);
    this.own.push(0);
  }

  /** Add the next span. @param {ArrayLike<number>[]} columns @param {number} at */
  add(columns, at) {
    const i = this.count++;
    if (this.count > this.node.length) this.#grow();
    const parent = any(/** @type {ArrayLike<number>} */ (columns[1]), at);
    this.node[i] = any(/** @type {ArrayLike<number>} */ (columns[0]), at);
    this.parent[i] = parent < i ? parent : -1;
    this.start[i] = any(/** @type {ArrayLike<number>} */ (columns[2]), at);
    this.end[i] = -1;
    this.total[i] = any(/** @type {ArrayLike<number>} */ (columns[6]), at);
    this.depth[i] = parent >= 0 && parent < i ? int(this.depth, parent) + 1 : 0;
    this.self[i] = 0;
    this.steps[i] = 0;
    this.status[i] = RUNNING;
    const end = any(/** @type {ArrayLike<number>} */ (columns[3]), at);
    this.lane[i] = this.#laneFor(i, end);
    this.open.add(i);
    this.latest = Math.max(this.latest, real(this.start, i));
    if (int(this.lane, i) >= 0) this.#append(i);
    else this.crowded++;
    this.set(i, columns, at);
  }

  /** Take what may change of a span. @param {number} i @param {ArrayLike<number>[]} columns @param {number} at */
  set(i, columns, at) {
    const end = any(/** @type {ArrayLike<number>} */ (columns[3]), at);
    const own = any(/** @type {ArrayLike<number>} */ (columns[4]), at);
    const node = int(this.node, i);
    this.own[node] = (this.own[node] ?? 0) + own - real(this.self, i);
    this.self[i] = own;
    this.steps[i] = any(/** @type {ArrayLike<number>} */ (columns[5]), at);
    const status = any(/** @type {ArrayLike<number>} */ (columns[7]), at);
    const known = status === int(this.status, i) && end === real(this.end, i);
    if (known) return;
    if (real(this.end, i) < 0 && end >= 0) {
      this.open.delete(i);
      if (int(this.parent, i) < 0) this.#roots += end - real(this.start, i);
    }
    this.end[i] = end;
    this.status[i] = status;
    this.latest = Math.max(this.latest, end);
  }

  /** The row that a span is drawn in. @param {number} i */
  rowOf(i) {
    return this.#row.get(int(this.lane, i) * 65536 + int(this.depth, i));
  }

  /** The end of a span, or now. @param {number} i @param {number} now */
  until(i, now) {
    const end = real(this.end, i);
    return end < 0 ? Math.max(now, real(this.start, i)) : end;
  }

  /** Seconds of all roots. @param {number} now */
  roots(now) {
    let sum = this.#roots;
    for (const i of this.open) if (int(this.parent, i) < 0) sum += this.until(i, now) - real(this.start, i);
    return sum;
  }

  /** @param {number} i */
  nameOf(i) {
    return this.names[int(this.node, i)] ?? "(no name)";
  }

  /** The names from the root down. @param {number} i */
  pathOf(i) {
    const names = [];
    for (let node = int(this.node, i); node >= 0; node = this.above[node] ?? -1) names.push(this.names[node] ?? "");
    const path = names.reverse().join(PATH_SEPARATOR);
    return path.length <= MAX_PATH ? path : `${cut(path, MAX_PATH / 2)} … ${path.slice(-MAX_PATH / 2)}`;
  }

  /** Open spans with no open one below. */
  innermost() {
    const found = new Set(this.open);
    for (const i of this.open) found.delete(int(this.parent, i));
    return found;
  }

  /** The span of a path that is open at a time, or -1. @param {number} node @param {number} time @param {number} now */
  find(node, time, now) {
    for (const row of this.rows) {
      const k = this.firstAfter(row, time, now);
      if (k >= row.count) continue;
      const i = int(row.items, k);
      if (int(this.node, i) === node && real(this.start, i) <= time) return i;
    }
    return -1;
  }

  /** The place in a row of the first span that ends after a time. @param {Row} row @param {number} time @param {number} now */
  firstAfter(row, time, now) {
    let [low, high] = [0, row.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.until(int(row.items, middle), now) > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /**
   * Go through the boxes of a row between two times: its spans, where those that are shorter than `narrow` and follow
   * each other within as much are one. Takes time in the number of boxes, not of spans.
   *
   * @param {Row} row @param {number} t0 @param {number} t1 @param {number} now @param {number} narrow
   * @param {(first: number, last: number, start: number, end: number) => void} emit called with places in the row
   */
  boxes(row, t0, t1, now, narrow, emit) {
    const { items, count } = row;
    let first = -1;
    let last = -1;
    let from = 0;
    let to = 0;
    let k = this.firstAfter(row, t0, now);
    // One without any duration ends when it starts.
    while (k > 0 && real(this.start, int(items, k - 1)) >= t0) k--;
    while (k < count) {
      const start = real(this.start, int(items, k));
      if (start > t1) break;
      const end = this.until(int(items, k), now);
      if (end - start >= narrow) {
        if (first >= 0) emit(first, last, from, to);
        first = -1;
        emit(k, k, start, end);
        k++;
        continue;
      }
      let next = this.#firstFrom(row, k + 1, start + narrow);
      let until = this.until(int(items, next - 1), now);
      if (next - 1 > k && until - real(this.start, int(items, next - 1)) >= narrow) {
        next--;
        until = this.until(int(items, next - 1), now);
      }
      if (first >= 0 && start - to <= narrow) {
        last = next - 1;
        to = until;
      } else {
        if (first >= 0) emit(first, last, from, to);
        first = k;
        last = next - 1;
        from = start;
        to = until;
      }
      k = next;
    }
    if (first >= 0) emit(first, last, from, to);
  }

  /** What several spans of a row have in common. @param {Row} row @param {number} first @param {number} last @param {number} now */
  summed(row, first, last, now) {
    const end = int(row.items, last);
    return {
      count: last - first + 1,
      busy: real(row.busy, last) - real(row.busy, first) + this.until(end, now) - real(this.start, end),
      odd: int(row.odd, last) - int(row.odd, first) + (int(this.status, end) > DONE ? 1 : 0),
      mixed: int(row.changes, last) > int(row.changes, first),
    };
  }

  /** The place from `from` on of the first span that starts at `time` or later. @param {Row} row @param {number} from @param {number} time */
  #firstFrom(row, from, time) {
    const { items, count } = row;
    let step = 1;
    let low = from;
    while (low < count && real(this.start, int(items, Math.min(count - 1, low + step - 1))) < time) {
      low = Math.min(count, low + step);
      step *= 2;
    }
    let high = Math.min(count, low + step);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (real(this.start, int(items, middle)) >= time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /**
   * A lane in which it lies in the one above it and overlaps no other; as `lanes` of ../../trace.py.
   *
   * @param {number} i @param {number} end
   */
  #laneFor(i, end) {
    const start = real(this.start, i);
    const parent = int(this.parent, i);
    const home = parent >= 0 ? int(this.lane, parent) : 0;
    for (let n = -1; n < this.#stacks.length; n++) {
      const lane = n < 0 ? home : n;
      const stack = this.#stacks[lane];
      if (!stack) continue;
      let top = stack.at(-1);
      while (top !== undefined && top !== parent && real(this.end, top) >= 0 && real(this.end, top) <= start) {
        stack.pop();
        top = stack.at(-1);
      }
      const inside = top === parent && top !== undefined && (real(this.end, top) < 0 || (end >= 0 && end <= real(this.end, top)));
      if (top === undefined || inside) {
        stack.push(i);
        return lane;
      }
    }
    if (this.#stacks.length >= MAX_LANES) return -1;
    this.#stacks.push([i]);
    return this.#stacks.length - 1;
  }

  /** @param {number} i */
  #append(i) {
    const [lane, depth] = [int(this.lane, i), int(this.depth, i)];
    const key = lane * 65536 + depth;
    let row = this.#row.get(key);
    if (!row) {
      row = new Row(lane, depth);
      this.#row.set(key, row);
      this.rows.push(row);
      this.rows.sort((a, b) => a.lane - b.lane || a.depth - b.depth);
    }
    const place = row.count++;
    row.items = grown(row.items, row.count);
    row.busy = grown(row.busy, row.count);
    row.odd = grown(row.odd, row.count);
    row.changes = grown(row.changes, row.count);
    row.items[place] = i;
    this.place[i] = place;
    this.#sum(row, place);
  }

  /** Sum up what is before a place; nothing of it is open, for what is open keeps others out of its row. @param {Row} row @param {number} k */
  #sum(row, k) {
    if (k === 0) return;
    const [before, i] = [int(row.items, k - 1), int(row.items, k)];
    row.busy[k] = real(row.busy, k - 1) + Math.max(0, real(this.end, before) - real(this.start, before));
    row.odd[k] = int(row.odd, k - 1) + (int(this.status, before) > DONE ? 1 : 0);
    row.changes[k] = int(row.changes, k - 1) + (int(this.node, before) === int(this.node, i) ? 0 : 1);
  }

  #grow() {
    const length = Math.max(this.count, 2 * this.node.length);
    this.node = grown(this.node, length);
    this.parent = grown(this.parent, length);
    this.start = grown(this.start, length);
    this.end = grown(this.end, length);
    this.self = grown(this.self, length);
    this.steps = grown(this.steps, length);
    this.total = grown(this.total, length);
    this.status = grown(this.status, length);
    this.depth = grown(this.depth, length);
    this.lane = grown(this.lane, length);
    this.place = grown(this.place, length);
  }
}

// ------------------------------------------------------------------------------- what all views of a timeline share

/** One timeline's data and its connection to the kernel; its views come and go. */
export class Session {
  spans = new Spans();
  status = "pending";
  dropped = 0;
  live = false;
  /** Whether anything has been heard yet. */
  heard = false;
  /** Since when there was no callback, if that is long ago. @type {number | null} */
  silentSince = null;
  /** The views' way to be drawn again; `true` if the data has changed. @type {Set<() => void>} */
  listeners = new Set();
  /** Silences that are over, @type {Silence[]} */
  #silences = [];
  /** ... and those of them whose span is known. @type {{span: number, start: number, end: number}[]} */
  #found = [];
  /** @type {AnyModel<TimelineState>} */
  #model;
  /** @type {Channel | null} */
  #channel = null;
  #view = `${Math.random().toString(36).slice(2)}${Date.now().toString(36)}`;
  /** The views that are seen. @type {Set<object>} */
  #looking = new Set();
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  #said = 0;
  /** The kernel's time at `#at`, by the browser's monotonic clock. */
  told = 0;
  #at = 0;
  #shown = 0;

  /** @param {AnyModel<TimelineState>} model @param {AbortSignal} [signal] */
  constructor(model, signal) {
    this.#model = model;
    model.on("change:data", () => this.#load());
    model.on("change:channel", () => void this.#connect());
    model.on("msg:custom", (message, buffers) => this.#receive(message, buffers));
    signal?.addEventListener("abort", () => clearInterval(this.#timer));
    this.#load();
    void this.#connect();
  }

  get name() {
    return line(this.#model.get("data")?.name ?? "build");
  }

  /** The time up to which open phases count; it stands still when nothing more is heard. */
  get now() {
    if (!this.live) return this.told;
    const elapsed = this.heard ? Math.min(QUIET_S, (performance.now() - this.#at) / 1000) : 0;
    // A message that was late must not turn it back.
    this.#shown = Math.max(this.#shown, this.told + elapsed);
    return this.#shown;
  }

  /** Whether a kernel that was heard of has been silent for too long. */
  get quiet() {
    return this.live && this.heard && performance.now() - this.#at > QUIET_S * 1000;
  }

  /** Silences with the span of each. @returns {{span: number, start: number, end: number}[]} */
  silences() {
    if (!this.live || this.silentSince === null) return this.#found;
    const [start, end] = [this.silentSince, this.now];
    return [...this.#found, ...Array.from(this.spans.innermost(), (span) => ({ span, start, end }))];
  }

  /** Note whether a view is seen. @param {object} view @param {boolean} seen */
  look(view, seen) {
    if (seen === this.#looking.has(view)) return;
    if (seen) this.#looking.add(view);
    else this.#looking.delete(view);
    if (!this.live) return;
    if (this.#looking.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      this.#channel?.send({ kind: "away", view: this.#view });
    } else if (seen && this.#looking.size === 1) {
      this.#say();
      this.#timer ??= setInterval(() => {
        if (!this.heard || performance.now() - this.#said >= LOOK_MS) this.#say();
      }, ASK_MS);
    }
  }

  #say() {
    if (!this.#channel || this.#channel.comm_live === false || !this.live || this.#looking.size === 0) return;
    this.#said = performance.now();
    const { count, names } = this.spans;
    this.#channel.send({ kind: "look", view: this.#view, spans: count, names: names.length });
  }

  async #connect() {
    const reference = this.#model.get("channel");
    /** @type {Channel | null} */
    let channel = null;
    try {
      const model = reference ? await this.#model.widget_manager.get_model(reference.replace(/^(IPY_MODEL_|anywidget:)/, "")) : null;
      channel = /** @type {Channel | null} */ (/** @type {unknown} */ (model));
    } catch {
      // Without it nothing comes until the build has ended.
    }
    if (reference !== this.#model.get("channel")) return;
    this.#channel = channel;
    this.#say();
  }

  #load() {
    const data = this.#model.get("data") ?? {};
    const before = this.live;
    this.live = data.live ?? false;
    if (!this.live) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      const spans = new Spans();
      const parents = new Int32Array(data.parents ? copied(data.parents) : new ArrayBuffer(0));
      (data.names ?? []).forEach((name, i) => spans.addName(name, any(parents, i)));
      const columns = decoded(COLUMNS, data.columns ?? []);
      const count = columns[0]?.length ?? 0;
      for (let i = 0; i < count; i++) spans.add(columns, i);
      this.spans = spans;
      this.#setSilences(decoded(SILENCES, data.silences ?? []));
      this.silentSince = null;
      this.status = data.status ?? "ended";
      this.dropped = data.dropped ?? 0;
      this.told = Math.max(data.now ?? 0, spans.latest);
    } else if (!before) {
      this.#say();
    }
    this.#changed();
  }

  /** @param {unknown} content @param {Binary[]} buffers */
  #receive(content, buffers) {
    const message = /** @type {Message} */ (content);
    if (message?.kind !== "spans" || !this.live) return;
    const { spans } = this;
    if (message.names_first > spans.names.length || message.first > spans.count) {
      // Something before it was lost.
      this.spans = new Spans();
      this.#say();
      return;
    }
    this.heard = true;
    this.told = message.now;
    this.#at = performance.now();
    this.status = message.status;
    this.dropped = message.dropped;
    this.silentSince = message.silent_since;
    const [parents, changed, ...columns] = buffers;
    const above = new Int32Array(parents ? copied(parents) : new ArrayBuffer(0));
    message.names.forEach((name, i) => {
      if (message.names_first + i >= spans.names.length) spans.addName(name, any(above, i));
    });
    const numbers = new Int32Array(changed ? copied(changed) : new ArrayBuffer(0));
    const updates = decoded(COLUMNS, columns.slice(0, COLUMNS.length));
    numbers.forEach((number, at) => {
      if (number < spans.count) spans.set(number, updates, at);
    });
    const added = decoded(COLUMNS, columns.slice(COLUMNS.length, 2 * COLUMNS.length));
    for (let at = 0; at < message.count; at++) {
      const number = message.first + at;
      if (number < spans.count) spans.set(number, added, at);
      else spans.add(added, at);
    }
    if (message.silences) this.#setSilences(decoded(SILENCES, columns.slice(2 * COLUMNS.length)));
    this.#changed();
  }

  /** @param {ArrayLike<number>[]} columns */
  #setSilences([nodes, starts, ends]) {
    this.#silences = Array.from(nodes ?? [], (node, i) => [node, any(starts ?? [], i), any(ends ?? [], i)]);
  }

  #changed() {
    const now = this.now;
    this.#found = this.#silences.flatMap(([node, start, end]) => {
      const span = this.spans.find(node, (start + end) / 2, now);
      return span < 0 ? [] : [{ span, start, end }];
    });
    for (const listener of this.listeners) listener();
  }
}

// ---------------------------------------------------------------------------------------------------------- colours

/**
 * @typedef {object} Palette
 * @property {readonly string[]} fills
 * @property {string} mixed
 * @property {string} text
 * @property {string} hatch
 * @property {readonly string[]} edges of the statuses
 * @property {string} fg
 * @property {string} muted
 * @property {string} bg
 * @property {string} line
 * @property {boolean} outlined boxes have an edge in the colour of the text
 */

// Tints after the palette of Okabe and Ito, which the colour-blind can tell apart; all take dark text, the shades white.
export const LIGHT = {
  fills: ["#9ecdef", "#f7cd8b", "#8fd6bd", "#f2e694", "#c3c2f0", "#eab9d3"],
  mixed: "#cfcfcf",
  text: "#111111",
  hatch: "rgb(0 0 0 / 30%)",
  edges: ["#0d5aa7", "", "#8a4500", "#b3261e", "#555555"],
};
export const DARK = {
  fills: ["#1f5f8b", "#84540f", "#12694f", "#645c10", "#474c9c", "#7c3d60"],
  mixed: "#5a5a5a",
  text: "#ffffff",
  hatch: "rgb(255 255 255 / 34%)",
  edges: ["#90caf9", "", "#ffb74d", "#ff8a80", "#bdbdbd"],
};

/** @type {OffscreenCanvasRenderingContext2D | null | undefined} */
let pixel;

/** @param {string} colour as CSS has it @returns {[number, number, number]} */
function rgb(colour) {
  pixel ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  if (!pixel) return [255, 255, 255];
  pixel.fillStyle = "#fff";
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [r = 255, g = 255, b = 255] = pixel.getImageData(0, 0, 1, 1).data;
  return [r, g, b];
}

/** A number that stays the same for a name. @param {string} name */
function hash(name) {
  let h = 2166136261;
  for (let i = 0; i < name.length; i++) h = Math.imul(h ^ name.charCodeAt(i), 16777619);
  return (h ^ (h >>> 15)) >>> 0;
}

/** @param {Element} root @returns {Palette} */
function paletteOf(root) {
  const { color: fg, backgroundColor: bg, borderTopColor: line } = getComputedStyle(root);
  const hint = root.querySelector(".trt-t-hint");
  const muted = hint ? getComputedStyle(hint).color : fg;
  if (matchMedia("(forced-colors: active)").matches) {
    const edges = [fg, "", fg, fg, fg];
    return { fills: [bg, bg, bg, bg, bg, bg], mixed: bg, text: fg, hatch: fg, edges, fg, muted: fg, bg, line: fg, outlined: true };
  }
  const [r, g, b] = rgb(bg);
  const base = 0.2126 * r + 0.7152 * g + 0.0722 * b < 110 ? DARK : LIGHT;
  return { ...base, fg, muted, bg, line, outlined: false };
}

/** Times of the axis: a step of 1, 2 or 5 that leaves room for its words. @param {number} t0 @param {number} t1 @param {number} width */
function ticks(t0, t1, width) {
  const rough = ((t1 - t0) * 84) / Math.max(1, width);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const minute = [60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400].find((s) => s >= rough);
  const step = rough > 30 ? (minute ?? 86400) : (([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10) * power);
  const found = [];
  for (let n = Math.ceil(t0 / step - 1e-9); n * step <= t1 && found.length < 200; n++) found.push(n * step);
  return { step, found };
}

// ------------------------------------------------------------------------------------------------------------ a view

/** @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string} [className] @param {string} [text] @returns {HTMLElementTagNameMap[K]} */
function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** For text of unknown direction. @param {string} text @param {string} [className] */
function foreign(text, className) {
  const element = make("bdi", className, text);
  element.dir = "auto";
  return element;
}

/** @param {Element} element @param {string} text */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** @param {string} text @param {string} label @param {() => void} action */
function button(text, label, action) {
  const element = make("button", "trt-t-button", text);
  element.type = "button";
  element.setAttribute("aria-label", label);
  element.title = label;
  element.addEventListener("click", action);
  return element;
}

/** Every timeline has this module of its own, and all are in one page. */
const PAGE_WIDE = Math.random().toString(36).slice(2, 10);
let serial = 0;

/** What lies under a point. @typedef {{row: Row, first: number, last: number, start: number, end: number}} Box */

/** One view: a picture, its buttons, and what says the same in words. */
class View {
  #session;
  #root = make("div", "trt-timeline");
  #caption = make("span", "trt-t-caption");
  #plot = make("div", "trt-t-plot");
  #tall = make("div", "trt-t-tall");
  #canvas = make("canvas", "trt-t-canvas");
  #empty = make("div", "trt-t-empty");
  #tip = make("div", "trt-t-tip");
  #hint = make("div", "trt-t-hint");
  #keys = make("div", "trt-t-unseen");
  #note = make("div", "trt-t-note");
  #longest = make("details", "trt-t-longest");
  #body = make("tbody");
  #live = make("div", "trt-t-live trt-t-unseen");
  #buttons = make("span", "trt-t-buttons");
  #ctx;
  /** The times that are seen, or null for all. @type {{t0: number, t1: number} | null} */
  #window = null;
  /** The span that the keyboard is at, or -1. */
  #at = -1;
  /** @type {Box | null} */
  #hover = null;
  /** @type {Palette | null} */
  #palette = null;
  /** @type {CanvasPattern | null} */
  #hatch = null;
  #font = "11px sans-serif";
  #width = 0;
  #ratio = 0;
  #frame = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  #seen = false;
  /** @type {{id: number, x: number, y: number, moved: boolean, window: {t0: number, t1: number}, top: number} | null} */
  #drag = null;
  /** @type {{from: {t0: number, t1: number}, to: {t0: number, t1: number}, begun: number, whole: boolean} | null} */
  #flight = null;
  #tabled = 0;
  /** The boxes of the last frame. */
  #drawnRows = new Int32Array(1024);
  #drawnFirst = new Int32Array(1024);
  #drawnLast = new Int32Array(1024);
  #drawnStart = new Float64Array(1024);
  #drawnEnd = new Float64Array(1024);
  #drawn = 0;
  /** Rectangles by colour: x, y, width, height. @type {Map<string, number[]>} */
  #batches = new Map();
  /** Widths of texts. @type {Map<string, number>} */
  #widths = new Map();
  /** Colours by path. @type {string[]} */
  #fillOf = [];
  #abort = new AbortController();
  /** @type {(ResizeObserver | IntersectionObserver | MutationObserver)[]} */
  #observers = [];
  #onData = () => this.#changed();

  /** @param {Session} session @param {HTMLElement} el */
  constructor(session, el) {
    this.#session = session;
    const id = `trt-timeline-${PAGE_WIDE}-${++serial}`;
    const root = this.#root;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "Timeline");
    // JupyterLab takes keys such as 0 and Enter for itself otherwise.
    root.dataset["lmSuppressShortcuts"] = "true";
    const context = this.#canvas.getContext("2d");
    if (!context) throw new Error("this browser has no canvas");
    this.#ctx = context;
    this.#buttons.append(
      button("−", "Zoom out", () => this.#zoom(1 / ZOOM_STEP)),
      button("+", "Zoom in", () => this.#zoom(ZOOM_STEP)),
      button("Whole", "Show the whole build", () => this.#show(null)),
      button("Save SVG", "Save SVG of what is seen", () => this.#download()),
    );
    const bar = make("div", "trt-t-bar");
    bar.append(this.#caption, this.#buttons);
    this.#keys.id = `${id}-keys`;
    setText(
      this.#keys,
      "Left and right arrow go along a row of phases, up and down to the phase above and below. Enter zooms to the phase, " +
        "plus and minus zoom, Shift with left and right arrow moves what is seen, 0 shows the whole build.",
    );
    this.#hint.setAttribute("aria-hidden", "true");
    const mac = /Mac|iP/.test(navigator.platform);
    setText(
      this.#hint,
      `${mac ? "⌘" : "Ctrl"} + wheel zooms, drag pans, double-click zooms to a phase. Keys: arrows, Enter, +, −, Shift + arrows, 0.`,
    );
    const plot = this.#plot;
    plot.tabIndex = 0;
    plot.setAttribute("role", "application");
    plot.setAttribute("aria-roledescription", "timeline");
    plot.setAttribute("aria-describedby", this.#keys.id);
    this.#canvas.setAttribute("aria-hidden", "true");
    this.#tip.setAttribute("aria-hidden", "true");
    if ("popover" in this.#tip) this.#tip.popover = "manual";
    this.#tip.hidden = !("popover" in this.#tip);
    this.#live.setAttribute("aria-live", "polite");
    this.#tall.append(this.#canvas);
    plot.append(this.#tall, this.#empty);
    this.#longest.append(make("summary", "", "Phases with the most time of their own"), this.#table());
    root.append(bar, plot, this.#note, this.#hint, this.#keys, this.#longest, this.#live, this.#tip);
    el.append(root);
    this.#listen();
    session.listeners.add(this.#onData);
    this.#changed();
  }

  /** Forget everything. */
  dispose() {
    this.#session.listeners.delete(this.#onData);
    this.#session.look(this, false);
    this.#abort.abort();
    for (const observer of this.#observers) observer.disconnect();
    clearInterval(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#root.remove();
  }

  // ---- what happens

  #listen() {
    const { signal } = this.#abort;
    const plot = this.#plot;
    const resized = new ResizeObserver(() => this.#draw());
    resized.observe(plot);
    const seen = new IntersectionObserver((entries) => {
      this.#seen = entries.at(-1)?.isIntersecting ?? false;
      this.#wake();
    });
    seen.observe(this.#root);
    const themed = new MutationObserver(() => this.#themed());
    const attributes = { attributeFilter: ["class", "style", "data-jp-theme-name", "data-jp-theme-light", "data-theme"] };
    themed.observe(document.documentElement, attributes);
    themed.observe(document.body, attributes);
    this.#observers.push(resized, seen, themed);
    for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
      matchMedia(query).addEventListener("change", () => this.#themed(), { signal });
    }
    document.addEventListener("visibilitychange", () => this.#wake(), { signal });
    plot.addEventListener("scroll", () => this.#invalidate(), { signal, passive: true });
    plot.addEventListener("wheel", (event) => this.#onWheel(event), { signal, passive: false });
    plot.addEventListener("pointerdown", (event) => this.#onDown(event), { signal });
    plot.addEventListener("pointermove", (event) => this.#onMove(event), { signal });
    plot.addEventListener("pointerup", (event) => this.#onUp(event), { signal });
    plot.addEventListener("pointercancel", () => this.#release(), { signal });
    plot.addEventListener("pointerleave", () => this.#setHover(null), { signal });
    plot.addEventListener("dblclick", (event) => this.#onDouble(event), { signal });
    plot.addEventListener("keydown", (event) => this.#onKey(event), { signal });
    plot.addEventListener("focus", () => this.#invalidate(), { signal });
    plot.addEventListener("blur", () => this.#hideTip(), { signal });
    this.#longest.addEventListener("toggle", () => this.#fillTable(true), { signal });
  }

  /** The colours may be others: at once, and when a theme's file has been read. */
  #themed() {
    this.#palette = null;
    this.#invalidate();
    for (const delay of [150, 600]) {
      setTimeout(() => {
        this.#palette = null;
        this.#invalidate();
      }, delay);
    }
  }

  /** New data. */
  #changed() {
    this.#words();
    this.#fillTable(false);
    this.#wake();
    this.#invalidate();
  }

  /** Let the clock tick while somebody looks at something that grows. */
  #wake() {
    const seen = this.#seen && !document.hidden;
    this.#session.look(this, seen);
    const ticking = seen && this.#session.live && this.#session.heard;
    if (ticking && this.#timer === undefined) {
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.#timer = setInterval(() => this.#tick(), calm ? 1000 : 100);
    } else if (!ticking) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
    if (seen) this.#invalidate();
  }

  #tick() {
    this.#caption.replaceChildren(...this.#captionNow());
    if (this.#session.spans.open.size > 0) this.#invalidate();
  }

  // ---- words

  #captionNow() {
    const { spans, live, now, quiet, heard } = this.#session;
    /** @type {string[]} */
    const parts = [];
    if (spans.count > 0) parts.push(`${plural(spans.count, "phase")} in ${duration(now)}`);
    else if (live && heard) parts.push(duration(now));
    if (quiet) parts.push("no news from the kernel");
    const window = this.#window;
    if (window) {
      const step = (window.t1 - window.t0) / 100;
      parts.push(`showing ${moment(window.t0, step)} to ${moment(window.t1, step)}`);
    }
    // In a card the title is there already.
    const title = make("span", "trt-t-title");
    title.append(make("b", "", "Timeline"), parts.length > 0 ? " · " : "");
    return [title, parts.join(" · ")];
  }

  /** What the picture says, in a sentence or two. */
  #summary() {
    const { spans, now, live, name } = this.#session;
    if (spans.count === 0) return `Timeline of ${name}: no phases${live ? " yet" : ""}.`;
    const own = new Map();
    spans.own.forEach((seconds, node) => {
      const label = spans.names[node] ?? "";
      own.set(label, (own.get(label) ?? 0) + seconds);
    });
    const most = [...own].sort((a, b) => b[1] - a[1]).slice(0, 3).filter(([, seconds]) => seconds > 0);
    const listed = most.map(([label, seconds]) => `${line(label, 60)} ${duration(seconds)}`).join(", ");
    const levels = Math.max(...spans.rows.map((row) => row.depth), 0) + 1;
    const all = `Timeline of ${name}: ${plural(spans.count, "phase")} on ${plural(levels, "level")}`;
    const silent = this.#session.silences().reduce((sum, { start, end }) => sum + end - start, 0);
    return (
      `${all}${live ? ` so far, in ${duration(now)}` : `, ${duration(now)} in all`}.` +
      (listed ? ` Most time of its own: ${listed}.` : "") +
      (silent > 0 ? ` ${duration(silent)} passed without any callback of TensorRT.` : "")
    );
  }

  #words() {
    const { spans, dropped, live, heard } = this.#session;
    this.#caption.replaceChildren(...this.#captionNow());
    this.#plot.setAttribute("aria-label", this.#summary());
    this.#empty.hidden = spans.count > 0;
    setText(this.#empty, live ? (heard ? "No phase yet" : "Waiting for the build") : "No phases were recorded");
    const notes = [];
    if (dropped > 0) notes.push(`${whole.format(dropped)} more phases are counted in the timings, but not kept one by one and so not drawn.`);
    if (spans.crowded > 0) notes.push(`${plural(spans.crowded, "phase")} beside ${MAX_LANES} hierarchies at the same time: not drawn.`);
    setText(this.#note, notes.join(" "));
    this.#note.hidden = notes.length === 0;
    this.#hint.hidden = spans.count === 0;
    this.#longest.hidden = spans.count === 0;
    this.#buttons.hidden = spans.count === 0;
    this.#root.dataset["live"] = String(live);
  }

  /** What is to be said of a span: [what, value]. @param {number} i @returns {[string, string][]} */
  #facts(i) {
    const { spans, now } = this.#session;
    const start = real(spans.start, i);
    const lasted = spans.until(i, now) - start;
    const all = spans.roots(now);
    const status = int(spans.status, i);
    const [done, total] = [real(spans.steps, i), real(spans.total, i)];
    const silent = this.#session.silences().reduce((sum, entry) => sum + (entry.span === i ? entry.end - entry.start : 0), 0);
    // Its own time is known up to the latest message; what passed since then in an innermost phase is its own, too.
    const own = status === RUNNING && !this.#hasOpenBelow(i) ? this.#ownNow(i, now) : real(spans.self, i);
    /** @type {[string, string][]} */
    const facts = [
      ["Start", duration(start)],
      [status === RUNNING ? "So far" : "Duration", duration(lasted)],
      ["Of its own", duration(Math.min(own, lasted))],
      ["Share of the build", all > 0 ? percent(lasted / all) : "–"],
    ];
    if (done > 0 || total > 0) facts.push(["Steps", total > 0 ? `${steps(done)} of ${steps(total)}` : steps(done)]);
    if (silent > 0) facts.push(["Without a callback", duration(silent)]);
    if (status !== DONE) facts.push(["Status", STATUS[status] ?? ""]);
    return facts;
  }

  /** @param {number} i */
  #hasOpenBelow(i) {
    for (const other of this.#session.spans.open) if (int(this.#session.spans.parent, other) === i) return true;
    return false;
  }

  /** @param {number} i @param {number} now */
  #ownNow(i, now) {
    const { spans } = this.#session;
    return real(spans.self, i) + Math.max(0, now - this.#session.told) / Math.max(1, spans.innermost().size);
  }

  /** A span for those who listen. @param {number} i */
  #spoken(i) {
    const { spans } = this.#session;
    const row = spans.rowOf(i);
    const facts = this.#facts(i).map(([what, value]) => `${what.toLowerCase()} ${value}`);
    const where = row ? `, ${int(spans.place, i) + 1} of ${row.count} in its row` : "";
    return `${spans.nameOf(i)}: ${facts.join(", ")}. Level ${int(spans.depth, i) + 1}${where}.`;
  }

  #table() {
    const table = make("table");
    const head = make("tr");
    for (const title of ["Phase", "Times", "Duration", "Of its own", "Share"]) {
      const cell = make("th", "", title);
      cell.scope = "col";
      head.append(cell);
    }
    const top = make("thead");
    top.append(head);
    table.append(top, this.#body);
    return table;
  }

  /** @param {boolean} now */
  #fillTable(now) {
    const at = performance.now();
    const focused = this.#body.contains(document.activeElement);
    if (!this.#longest.open || (!now && this.#session.live && (at - this.#tabled < 2000 || focused))) return;
    this.#tabled = at;
    const { spans, now: time } = this.#session;
    const paths = spans.names.length;
    const counts = new Int32Array(paths);
    const sums = new Float64Array(paths);
    /** The longest span of every path, or -1. */
    const longest = new Int32Array(paths).fill(-1);
    for (let i = 0; i < spans.count; i++) {
      const node = int(spans.node, i);
      const lasted = spans.until(i, time) - real(spans.start, i);
      counts[node] = int(counts, node) + 1;
      sums[node] = real(sums, node) + lasted;
      const best = int(longest, node);
      if (best < 0 || lasted > spans.until(best, time) - real(spans.start, best)) longest[node] = i;
    }
    const own = (/** @type {number} */ node) => spans.own[node] ?? 0;
    const most = [...spans.names.keys()].filter((node) => int(longest, node) >= 0).sort((a, b) => own(b) - own(a));
    const all = spans.roots(time);
    this.#body.replaceChildren(
      ...most.slice(0, LONGEST).map((node) => {
        const i = int(longest, node);
        const row = make("tr");
        const name = make("th");
        name.scope = "row";
        const go = make("button", "trt-t-go");
        go.type = "button";
        go.title = spans.pathOf(i);
        go.append(foreign(SIGN[int(spans.status, i)] + spans.nameOf(i)));
        go.addEventListener("click", () => {
          this.#plot.focus();
          this.#select(i);
          this.#showSpan(i);
        });
        name.append(go);
        row.append(name);
        const share = all > 0 ? percent(Math.min(1, own(node) / all)) : "–";
        for (const text of [whole.format(int(counts, node)), duration(real(sums, node)), duration(own(node)), share]) {
          row.append(make("td", "", text));
        }
        return row;
      }),
    );
  }

  // ---- time and place

  /** All there is. */
  get #all() {
    const { now, spans } = this.#session;
    return { t0: 0, t1: Math.max(now, spans.latest, SHORTEST_WINDOW_S) };
  }

  /** What is seen. */
  get #times() {
    return this.#window ?? this.#all;
  }

  /** @param {number} t0 @param {number} t1 @returns {{t0: number, t1: number} | null} */
  #clamped(t0, t1) {
    const all = this.#all;
    const extent = Math.max(t1 - t0, SHORTEST_WINDOW_S);
    if (extent >= all.t1 * 0.9999) return null;
    const from = Math.min(Math.max(t0, 0), all.t1 - extent);
    return { t0: from, t1: from + extent };
  }

  /** Show these times, or all. @param {{t0: number, t1: number} | null} window */
  #show(window) {
    const to = window ? this.#clamped(window.t0, window.t1) : null;
    const from = this.#times;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#flight = null;
      this.#setWindow(to);
      return;
    }
    this.#flight = { from, to: to ?? this.#all, begun: performance.now(), whole: to === null };
    this.#invalidate();
  }

  /** @param {{t0: number, t1: number} | null} window */
  #setWindow(window) {
    this.#window = window;
    this.#plot.dataset["zoomed"] = String(window !== null);
    this.#caption.replaceChildren(...this.#captionNow());
    this.#invalidate();
  }

  #fly() {
    const flight = this.#flight;
    if (!flight) return;
    const part = Math.min(1, (performance.now() - flight.begun) / ZOOM_MS);
    const eased = 1 - (1 - part) ** 3;
    const { from, to } = flight;
    if (part === 1) {
      this.#flight = null;
      this.#setWindow(flight.whole ? null : to);
    } else {
      this.#window = { t0: from.t0 + (to.t0 - from.t0) * eased, t1: from.t1 + (to.t1 - from.t1) * eased };
      this.#invalidate();
    }
  }

  /** @param {number} factor @param {number} [middle] the time that stays where it is */
  #zoom(factor, middle) {
    const { t0, t1 } = this.#times;
    const { spans, now } = this.#session;
    let fixed = middle ?? (t0 + t1) / 2;
    if (middle === undefined && this.#at >= 0) {
      const centre = (real(spans.start, this.#at) + spans.until(this.#at, now)) / 2;
      if (centre > t0 && centre < t1) fixed = centre;
    }
    const extent = Math.max((t1 - t0) / factor, SHORTEST_WINDOW_S);
    const from = fixed - ((fixed - t0) / (t1 - t0)) * extent;
    this.#flight = null;
    this.#setWindow(this.#clamped(from, from + extent));
  }

  /** @param {number} seconds @returns {boolean} whether it moved */
  #pan(seconds) {
    const window = this.#window;
    if (!window) return false;
    this.#flight = null;
    const moved = this.#clamped(window.t0 + seconds, window.t1 + seconds);
    const by = moved ? moved.t0 - window.t0 : 0;
    this.#setWindow(moved);
    return by !== 0;
  }

  /** @param {number} i */
  #showSpan(i) {
    const { spans, now } = this.#session;
    const [start, end] = [real(spans.start, i), spans.until(i, now)];
    const margin = Math.max((end - start) * 0.04, SHORTEST_WINDOW_S);
    this.#show({ t0: start - margin, t1: end + margin });
    this.#reveal(i);
  }

  /** Scroll to a span's row. @param {number} i */
  #reveal(i) {
    const { spans } = this.#session;
    const row = spans.rowOf(i);
    if (!row) return;
    const y = spans.rows.indexOf(row) * ROW;
    const plot = this.#plot;
    const room = plot.clientHeight - AXIS - ROW;
    if (y < plot.scrollTop) plot.scrollTop = y;
    else if (y > plot.scrollTop + room) plot.scrollTop = y - room;
  }

  /** @param {number} clientX */
  #timeAt(clientX) {
    const { t0, t1 } = this.#times;
    const box = this.#plot.getBoundingClientRect();
    return t0 + ((clientX - box.left) / Math.max(1, this.#width)) * (t1 - t0);
  }

  /** The box under a point: of those that were drawn. @param {MouseEvent} event @returns {Box | null} */
  #boxAt(event) {
    const box = this.#plot.getBoundingClientRect();
    const y = event.clientY - box.top;
    if (y < AXIS) return null;
    const index = Math.floor((y - AXIS + this.#plot.scrollTop) / ROW);
    const row = this.#session.spans.rows[index];
    if (!row) return null;
    const time = this.#timeAt(event.clientX);
    const { t0, t1 } = this.#times;
    const near = ((t1 - t0) / Math.max(1, this.#width)) * 2;
    let best = -1;
    let distance = near;
    for (let k = 0; k < this.#drawn; k++) {
      if (int(this.#drawnRows, k) !== index) continue;
      const away = Math.max(real(this.#drawnStart, k) - time, time - real(this.#drawnEnd, k), 0);
      if (away < distance || (best < 0 && away <= distance)) [best, distance] = [k, away];
    }
    if (best < 0) return null;
    return {
      row,
      first: int(this.#drawnFirst, best),
      last: int(this.#drawnLast, best),
      start: real(this.#drawnStart, best),
      end: real(this.#drawnEnd, best),
    };
  }

  // ---- pointer and keys

  /** @param {WheelEvent} event */
  #onWheel(event) {
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const by = Math.max(-120, Math.min(120, event.deltaY * lines));
      this.#zoom(Math.exp(-by * 0.0035), this.#timeAt(event.clientX));
      return;
    }
    // A plain wheel scrolls, the rows or the page.
    const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
    if (sideways === 0 || !this.#window) return;
    const { t0, t1 } = this.#times;
    if (this.#pan(((sideways * lines) / Math.max(1, this.#width)) * (t1 - t0))) event.preventDefault();
  }

  /** @param {PointerEvent} event */
  #onDown(event) {
    if (event.button !== 0) return;
    const window = { ...this.#times };
    this.#drag = { id: event.pointerId, x: event.clientX, y: event.clientY, moved: false, window, top: this.#plot.scrollTop };
    this.#flight = null;
    // The next move may be outside already. Not of a finger: it may be about to scroll the page.
    if (event.pointerType === "mouse") this.#plot.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  #onMove(event) {
    const drag = this.#drag;
    if (!drag || drag.id !== event.pointerId) {
      this.#setHover(this.#boxAt(event), event);
      return;
    }
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved) {
      if (Math.hypot(dx, dy) < 4) return;
      drag.moved = true;
      this.#plot.dataset["dragging"] = "true";
      this.#setHover(null);
    }
    if (this.#window) {
      const by = (-dx / Math.max(1, this.#width)) * (drag.window.t1 - drag.window.t0);
      this.#setWindow(this.#clamped(drag.window.t0 + by, drag.window.t1 + by));
    }
    if (event.pointerType === "mouse") this.#plot.scrollTop = drag.top - dy;
  }

  /** @param {PointerEvent} event */
  #onUp(event) {
    const drag = this.#drag;
    this.#release();
    if (!drag || drag.moved || event.button !== 0) return;
    const box = this.#boxAt(event);
    this.#at = box ? int(box.row.items, box.first) : -1;
    this.#setHover(box, event);
    this.#invalidate();
  }

  #release() {
    this.#drag = null;
    delete this.#plot.dataset["dragging"];
  }

  /** @param {MouseEvent} event */
  #onDouble(event) {
    event.preventDefault();
    const box = this.#boxAt(event);
    this.#setHover(null);
    if (!box) {
      this.#show(null);
      return;
    }
    const margin = Math.max((box.end - box.start) * 0.04, SHORTEST_WINDOW_S);
    this.#show({ t0: box.start - margin, t1: box.end + margin });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { t0, t1 } = this.#times;
    const { spans } = this.#session;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => (event.shiftKey ? this.#pan((t0 - t1) / 5) : this.#walk(-1)),
      ArrowRight: () => (event.shiftKey ? this.#pan((t1 - t0) / 5) : this.#walk(1)),
      ArrowUp: () => {
        if (this.#at < 0) this.#walk(1);
        else if (int(spans.parent, this.#at) >= 0) this.#select(int(spans.parent, this.#at));
      },
      ArrowDown: () => this.#descend(),
      Enter: () => (this.#at < 0 ? this.#walk(1) : this.#showSpan(this.#at)),
      "+": () => this.#zoom(ZOOM_STEP),
      "=": () => this.#zoom(ZOOM_STEP),
      "-": () => this.#zoom(1 / ZOOM_STEP),
      _: () => this.#zoom(1 / ZOOM_STEP),
      0: () => this.#show(null),
      Home: () => this.#show(null),
      Escape: () => {
        this.#at = -1;
        this.#setHover(null);
        this.#invalidate();
      },
    };
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  /** Go to the next span of the row; to the first one that is seen, if there is none yet. @param {number} by */
  #walk(by) {
    const { spans, now } = this.#session;
    if (this.#at < 0 || this.#at >= spans.count) {
      const { t0, t1 } = this.#times;
      for (const row of spans.rows) {
        const k = spans.firstAfter(row, t0, now);
        if (k < row.count && real(spans.start, int(row.items, k)) <= t1) {
          this.#select(int(row.items, k));
          return;
        }
      }
      return;
    }
    const row = spans.rowOf(this.#at);
    const place = int(spans.place, this.#at) + by;
    if (row && place >= 0 && place < row.count) this.#select(int(row.items, place));
  }

  #descend() {
    if (this.#at < 0) {
      this.#walk(1);
      return;
    }
    const { spans, now } = this.#session;
    const end = spans.until(this.#at, now);
    for (let i = this.#at + 1; i < spans.count && real(spans.start, i) <= end; i++) {
      if (int(spans.parent, i) === this.#at) {
        this.#select(i);
        return;
      }
    }
  }

  /** Move to a span, by keyboard. @param {number} i */
  #select(i) {
    const { spans, now } = this.#session;
    this.#at = i;
    const window = this.#window;
    const [start, end] = [real(spans.start, i), spans.until(i, now)];
    if (window && (end < window.t0 || start > window.t1)) {
      const half = (window.t1 - window.t0) / 2;
      const middle = end - start > 2 * half ? start + half : (start + end) / 2;
      this.#flight = null;
      this.#setWindow(this.#clamped(middle - half, middle + half));
    }
    this.#reveal(i);
    setText(this.#live, this.#spoken(i));
    const row = spans.rowOf(i);
    if (row) {
      const place = int(spans.place, i);
      const { t0, t1 } = this.#times;
      const box = this.#plot.getBoundingClientRect();
      const x = ((Math.max(start, t0) - t0) / (t1 - t0)) * this.#width;
      const y = AXIS + spans.rows.indexOf(row) * ROW - this.#plot.scrollTop;
      this.#fillTip({ row, first: place, last: place, start, end }, box.left + x - 8, box.top + y + ROW - 12);
    }
    this.#invalidate();
  }

  // ---- the tooltip

  /** @param {Box | null} box @param {MouseEvent} [event] */
  #setHover(box, event) {
    const before = this.#hover;
    this.#hover = box;
    if (before?.row !== box?.row || before?.first !== box?.first || before?.last !== box?.last) this.#invalidate();
    if (box && event) this.#fillTip(box, event.clientX, event.clientY);
    else this.#hideTip();
  }

  #hideTip() {
    if ("popover" in this.#tip && this.#tip.matches(":popover-open")) this.#tip.hidePopover();
    else if (!("popover" in this.#tip)) /** @type {HTMLElement} */ (this.#tip).hidden = true;
  }

  /** @param {Box} box @param {number} x @param {number} y in the window */
  #fillTip(box, x, y) {
    const { spans, now } = this.#session;
    const tip = this.#tip;
    const i = int(box.row.items, box.first);
    /** @type {[string, string][]} */
    let facts;
    if (box.first === box.last) {
      facts = this.#facts(i);
      tip.replaceChildren(foreign(spans.nameOf(i), "trt-t-name"));
      if (int(spans.depth, i) > 0) tip.append(foreign(spans.pathOf(i), "trt-t-path"));
    } else {
      const sum = spans.summed(box.row, box.first, box.last, now);
      const title = make("div", "trt-t-name", `${whole.format(sum.count)} ${sum.mixed ? "phases" : "× "}`);
      if (!sum.mixed) title.append(foreign(spans.nameOf(i)));
      tip.replaceChildren(title);
      if (sum.mixed) {
        const names = this.#namesIn(box);
        for (const [name, count] of names) {
          const entry = make("div", "trt-t-path", `${whole.format(count)} × `);
          entry.append(foreign(name));
          tip.append(entry);
        }
      }
      facts = [
        ["From", `${duration(box.start)} to ${duration(box.end)}`],
        ["In all", duration(sum.busy)],
      ];
      if (!sum.mixed) facts.push(["Each, on average", duration(sum.busy / sum.count)]);
      const all = spans.roots(now);
      if (all > 0) facts.push(["Share of the build", percent(sum.busy / all)]);
      if (sum.odd > 0) facts.push(["Not finished", whole.format(sum.odd)]);
    }
    const list = make("dl");
    for (const [what, value] of facts) list.append(make("dt", "", what), make("dd", "", value));
    tip.append(list);
    if ("popover" in tip) {
      if (!tip.matches(":popover-open")) tip.showPopover();
    } else {
      /** @type {HTMLElement} */ (tip).hidden = false;
    }
    const { width, height } = /** @type {HTMLElement} */ (tip).getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 12, document.documentElement.clientWidth - width - 4));
    const top = y + 16 + height < window.innerHeight ? y + 16 : Math.max(4, y - height - 10);
    /** @type {HTMLElement} */ (tip).style.left = `${left}px`;
    /** @type {HTMLElement} */ (tip).style.top = `${top}px`;
  }

  /** The most frequent names in a box. @param {Box} box @returns {[string, number][]} */
  #namesIn(box) {
    const { spans } = this.#session;
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (let k = box.first; k <= box.last; k++) {
      const name = spans.nameOf(int(box.row.items, k));
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
  }

  // ---- the picture

  #invalidate() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  /** Fit the canvas to the room there is. @returns {number} the height that is seen */
  #size() {
    const rows = Math.max(1, this.#session.spans.rows.length);
    const height = AXIS + rows * ROW + 2;
    // Half of a row says that there are more.
    const seen = rows > MAX_ROWS_SEEN ? AXIS + (MAX_ROWS_SEEN + 0.5) * ROW : height;
    const plot = this.#plot;
    if (this.#tall.style.height !== `${height}px`) this.#tall.style.height = `${height}px`;
    if (plot.style.height !== `${seen}px`) plot.style.height = `${seen}px`;
    const [width, ratio] = [this.#tall.clientWidth, Math.min(4, window.devicePixelRatio || 1)];
    const canvas = this.#canvas;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(seen * ratio) || ratio !== this.#ratio) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(seen * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${seen}px`;
      this.#palette = null;
    }
    this.#width = width;
    this.#ratio = ratio;
    return seen;
  }

  /** @returns {Palette} */
  #colours() {
    if (this.#palette) return this.#palette;
    const palette = paletteOf(this.#root);
    this.#palette = palette;
    this.#fillOf = [];
    const family = getComputedStyle(this.#root).fontFamily || "sans-serif";
    const font = `11px ${family}`;
    if (font !== this.#font) this.#widths.clear();
    this.#font = font;
    const size = Math.max(4, Math.round(6 * this.#ratio));
    const tile = new OffscreenCanvas(size, size);
    const pen = tile.getContext("2d");
    if (pen) {
      pen.strokeStyle = palette.hatch;
      pen.lineWidth = size / 4;
      pen.beginPath();
      for (const by of [-size, 0, size]) {
        pen.moveTo(by - 1, size + 1);
        pen.lineTo(by + size + 1, -1);
      }
      pen.stroke();
      this.#hatch = this.#ctx.createPattern(tile, "repeat");
      this.#hatch?.setTransform(new DOMMatrix([1 / this.#ratio, 0, 0, 1 / this.#ratio, 0, 0]));
    }
    return palette;
  }

  /** @param {number} i @param {Palette} palette */
  #fill(i, palette) {
    const node = int(this.#session.spans.node, i);
    return (this.#fillOf[node] ??= palette.fills[hash(this.#session.spans.nameOf(i)) % palette.fills.length] ?? palette.mixed);
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const begun = performance.now();
    this.#fly();
    const height = this.#size();
    const [ctx, width, ratio, { spans }] = [this.#ctx, this.#width, this.#ratio, this.#session];
    if (width <= 0) return;
    const palette = this.#colours();
    const now = this.#session.now;
    const { t0, t1 } = this.#times;
    const scale = width / (t1 - t0);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.bg;
    ctx.fillRect(0, 0, width, height);
    ctx.font = this.#font;
    ctx.textBaseline = "middle";
    if (spans.count > 0) this.#drawAxis(t0, t1, height, palette);

    ctx.save();
    ctx.beginPath();
    ctx.rect(0, AXIS, width, height - AXIS);
    ctx.clip();
    const scrolled = this.#plot.scrollTop;
    const top = Math.max(0, Math.floor(scrolled / ROW));
    const bottom = Math.min(spans.rows.length, Math.ceil((scrolled + height - AXIS) / ROW));
    const snap = (/** @type {number} */ x) => Math.round(x * ratio) / ratio;
    this.#drawn = 0;
    for (const batch of this.#batches.values()) batch.length = 0;
    for (let r = top; r < bottom; r++) {
      const row = /** @type {Row} */ (spans.rows[r]);
      const y = AXIS + r * ROW - scrolled;
      if (row.lane !== spans.rows[r - 1]?.lane && r > 0) {
        // What runs at the same time as what is above.
        ctx.globalAlpha = 0.45;
        ctx.fillStyle = palette.muted;
        ctx.fillRect(0, y - 1, width, 1);
        ctx.globalAlpha = 1;
      }
      spans.boxes(row, t0, t1, now, NARROW_PX / scale, (first, last, start, end) => {
        this.#keep(r, first, last, start, end);
        const left = snap(Math.min(width - 1, Math.max(-2, (start - t0) * scale)));
        const right = snap(Math.min(width + 2, (end - t0) * scale));
        const extent = Math.max(1, right - left - (right - left > 4 ? 1 : 0));
        const mixed = int(row.changes, last) > int(row.changes, first);
        const fill = mixed ? palette.mixed : this.#fill(int(row.items, first), palette);
        let batch = this.#batches.get(fill);
        if (!batch) this.#batches.set(fill, (batch = []));
        batch.push(left, y, extent, ROW - 1);
      });
    }
    for (const [fill, batch] of this.#batches) {
      ctx.fillStyle = fill;
      for (let k = 0; k < batch.length; k += 4) {
        ctx.fillRect(batch[k] ?? 0, batch[k + 1] ?? 0, batch[k + 2] ?? 0, batch[k + 3] ?? 0);
      }
    }
    const silent = this.#drawSilences(t0, scale, scrolled, top, bottom);
    const labels = this.#drawMarks(t0, scale, scrolled, palette, silent);
    ctx.restore();
    this.#drawThumb(t0, t1, palette);
    Object.assign(this.#plot, { trtDrawn: { boxes: this.#drawn, labels, ms: performance.now() - begun, t0, t1 } });
  }

  /** Keep a box for the pointer. @param {number} row @param {number} first @param {number} last @param {number} start @param {number} end */
  #keep(row, first, last, start, end) {
    const k = this.#drawn++;
    if (k >= this.#drawnRows.length) {
      this.#drawnRows = grown(this.#drawnRows, k + 1);
      this.#drawnFirst = grown(this.#drawnFirst, k + 1);
      this.#drawnLast = grown(this.#drawnLast, k + 1);
      this.#drawnStart = grown(this.#drawnStart, k + 1);
      this.#drawnEnd = grown(this.#drawnEnd, k + 1);
    }
    this.#drawnRows[k] = row;
    this.#drawnFirst[k] = first;
    this.#drawnLast[k] = last;
    this.#drawnStart[k] = start;
    this.#drawnEnd[k] = end;
  }

  /** @param {number} t0 @param {number} t1 @param {number} height @param {Palette} palette */
  #drawAxis(t0, t1, height, palette) {
    const [ctx, width] = [this.#ctx, this.#width];
    const { step, found } = ticks(t0, t1, width);
    ctx.direction = "ltr";
    ctx.textAlign = "left";
    for (const time of found) {
      const x = Math.round(((time - t0) / (t1 - t0)) * width) + 0.5;
      ctx.fillStyle = palette.line;
      ctx.fillRect(x - 0.5, 6, 1, height);
      const text = moment(time, step);
      if (x + 4 + this.#widthOf(text) > width) continue;
      ctx.fillStyle = palette.muted;
      ctx.fillText(text, x + 4, 10);
    }
  }

  /** Show which part of the build is seen. @param {number} t0 @param {number} t1 @param {Palette} palette */
  #drawThumb(t0, t1, palette) {
    if (!this.#window) return;
    const [ctx, width, all] = [this.#ctx, this.#width, this.#all.t1];
    ctx.fillStyle = palette.line;
    ctx.fillRect(0, 0, width, 3);
    ctx.fillStyle = palette.fg;
    const extent = Math.max(6, ((t1 - t0) / all) * width);
    ctx.fillRect(Math.min((t0 / all) * width, width - extent), 0, extent, 3);
  }

  /** @param {number} t0 @param {number} scale @param {number} scrolled @param {number} top @param {number} bottom @returns {Map<number, [left: number, right: number]>} the spans that are hatched, and where */
  #drawSilences(t0, scale, scrolled, top, bottom) {
    /** @type {Map<number, [number, number]>} */
    const hatched = new Map();
    const { spans } = this.#session;
    const ctx = this.#ctx;
    if (!this.#hatch) return hatched;
    ctx.fillStyle = this.#hatch;
    for (const { span, start, end } of this.#session.silences()) {
      const row = spans.rowOf(span);
      const r = row ? spans.rows.indexOf(row) : -1;
      if (r < top || r >= bottom) continue;
      const left = Math.max(0, (start - t0) * scale);
      const right = Math.min(this.#width, (end - t0) * scale);
      if (right - left < 3) continue;
      ctx.fillRect(left, AXIS + r * ROW - scrolled, right - left - 1, ROW - 1);
      const [before, after] = hatched.get(span) ?? [left, right];
      hatched.set(span, [Math.min(before, left), Math.max(after, right)]);
    }
    return hatched;
  }

  /**
   * Draw what a box says beside its colour: its name, what it has come to, and whether one is at it.
   *
   * @param {number} t0 @param {number} scale @param {number} scrolled @param {Palette} palette @param {Map<number, [number, number]>} silent
   */
  #drawMarks(t0, scale, scrolled, palette, silent) {
    const [ctx, width, { spans }] = [this.#ctx, this.#width, this.#session];
    const at = this.#at >= 0 && this.#at < spans.count ? this.#at : -1;
    const atRow = at >= 0 ? spans.rowOf(at) : undefined;
    const place = at >= 0 ? int(spans.place, at) : -1;
    let labels = 0;
    /** @type {[number, number, number, boolean][]} */
    const outlines = [];
    for (let k = 0; k < this.#drawn; k++) {
      const row = /** @type {Row} */ (spans.rows[int(this.#drawnRows, k)]);
      const [first, last] = [int(this.#drawnFirst, k), int(this.#drawnLast, k)];
      const x = (real(this.#drawnStart, k) - t0) * scale;
      const right = (real(this.#drawnEnd, k) - t0) * scale;
      const y = AXIS + int(this.#drawnRows, k) * ROW - scrolled;
      const i = int(row.items, first);
      const end = int(row.items, last);
      const extent = Math.max(1, right - x - 1);
      const single = first === last;
      const status = single ? int(spans.status, i) : Math.max(int(spans.status, end), DONE);
      const odd = single ? status !== DONE : int(row.odd, last) > int(row.odd, first) || int(spans.status, end) !== DONE;
      if (palette.outlined && extent > 3) {
        ctx.strokeStyle = palette.text;
        ctx.setLineDash([]);
        ctx.lineWidth = 1;
        ctx.strokeRect(Math.max(-4, x) + 0.5, y + 0.5, Math.min(width + 8, right) - Math.max(-4, x) - 2, ROW - 2);
      }
      if (odd) this.#drawStatus(single ? status : int(spans.status, end), x, right, y, palette);
      const isAt = row === atRow && place >= first && place <= last;
      if (isAt) outlines.push([x, right, y, true]);
      else if (this.#hover?.row === row && this.#hover.first === first && this.#hover.last === last) outlines.push([x, right, y, false]);
      const from = Math.max(x, 0) + 5;
      const room = Math.min(right, width) - from - 4;
      if (room < 18) continue;
      const mixed = int(row.changes, last) > int(row.changes, first);
      const name = spans.nameOf(i);
      const sign = SIGN[single ? status : DONE] ?? "";
      const text = single ? sign + name : mixed ? `${whole.format(last - first + 1)} phases` : `${whole.format(last - first + 1)} × ${isolated(name)}`;
      const fitting = this.#fitting(text, room);
      if (fitting === "") continue;
      labels++;
      ctx.direction = single && RIGHT_TO_LEFT.test(name) ? "rtl" : "ltr";
      ctx.textAlign = "left";
      const [left, until] = (single && silent.get(i)) || [Infinity, -Infinity];
      const taken = Math.min(room, this.#widthOf(fitting));
      const hatched = left < from + taken + 4 && until > from - 4;
      if (hatched) {
        // Letters on a plain ground, above a strip of the hatching.
        ctx.fillStyle = this.#fill(i, palette);
        const inset = palette.outlined ? 1 : 0;
        ctx.fillRect(from - 4, y + inset, taken + 8, ROW - 6 - inset);
      }
      ctx.fillStyle = palette.text;
      ctx.fillText(fitting, from, y + ROW / 2 - (hatched ? 2 : 0), room);
    }
    ctx.setLineDash([]);
    for (const [x, right, y, selected] of outlines) {
      const [left, end] = [Math.max(x, -4), Math.min(right, width + 4)];
      ctx.lineWidth = selected ? 2 : 1;
      ctx.strokeStyle = palette.fg;
      ctx.strokeRect(left + 0.5, y + 0.5, Math.max(2, end - left - 2), ROW - 2);
    }
    return labels;
  }

  /**
   * Draw what a phase has come to: a bold right edge where it still runs, a dashed or dotted frame where it was cut off.
   *
   * @param {number} status @param {number} x @param {number} right @param {number} y @param {Palette} palette
   */
  #drawStatus(status, x, right, y, palette) {
    const ctx = this.#ctx;
    const colour = palette.edges[status] || palette.fg;
    ctx.fillStyle = colour;
    const end = Math.min(this.#width, right);
    if (status === RUNNING) {
      ctx.fillRect(Math.max(x, end - 3), y, Math.max(1, Math.min(3, right - x)), ROW - 1);
      return;
    }
    const left = Math.max(-4, x);
    const extent = Math.min(this.#width + 4, right) - left - 1;
    if (extent < 6) {
      ctx.fillRect(left, y + ROW - 7, Math.max(1, extent), 6);
      return;
    }
    ctx.strokeStyle = colour;
    ctx.lineWidth = 2;
    ctx.setLineDash(status === 3 ? [6, 3] : status === 2 ? [2, 2] : []);
    ctx.strokeRect(left + 1, y + 1, extent - 2, ROW - 3);
    ctx.setLineDash([]);
  }

  /** @param {string} text */
  #widthOf(text) {
    let found = this.#widths.get(text);
    if (found === undefined) {
      if (this.#widths.size > 5000) this.#widths.clear();
      found = this.#ctx.measureText(text).width;
      this.#widths.set(text, found);
    }
    return found;
  }

  /** As much of a text as there is room for. @param {string} text @param {number} room */
  #fitting(text, room) {
    const full = this.#widthOf(text);
    if (full <= room) return text;
    const letters = Math.floor((text.length * (room - 8)) / full);
    if (letters < 2) return "";
    return `${cut(text, letters)}…${text.includes("\u2068") && letters > text.indexOf("\u2068") ? "\u2069" : ""}`;
  }

  // ---- as SVG

  #download() {
    const text = this.svg();
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    link.download = `${this.#session.name.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 80)}-timeline.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    setText(this.#live, "The picture was saved as SVG.");
  }

  /** What is seen, as a picture that stands alone: all rows, between the times that are shown. */
  svg() {
    let text = "";
    for (let narrow = 1; narrow < 4096; narrow *= 2) {
      text = this.#svgWith(narrow);
      if (text.length < MAX_SVG_BYTES && new TextEncoder().encode(text).length < MAX_SVG_BYTES) break;
    }
    return text;
  }

  /** @param {number} narrow pixels */
  #svgWith(narrow) {
    const { spans, now } = this.#session;
    const palette = this.#colours();
    const width = 1000;
    const { t0, t1 } = this.#times;
    const scale = width / (t1 - t0);
    const rows = spans.rows.slice(0, MAX_SVG_ROWS);
    const height = AXIS + rows.length * ROW + 2;
    const { step, found } = ticks(t0, t1, width);
    const n = (/** @type {number} */ x) => String(Math.round(x * 100) / 100);
    const [fg, bg, muted, rule] = [palette.fg, palette.bg, palette.muted, palette.line].map((colour) => {
      const [r, g, b] = rgb(colour);
      return `rgb(${r},${g},${b})`;
    });
    // Several in one page must not take each other's.
    const mark = `trt-silent-${Math.random().toString(36).slice(2, 10)}`;
    const silences = this.#session.silences();
    const hatched = new Set(silences.map(({ span }) => span));
    const summary = escape(this.#summary() + (this.#window ? ` Shown: ${moment(t0, step / 10)} to ${moment(t1, step / 10)}.` : ""));
    const parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" ` +
        `aria-label="${summary}" font-family="system-ui, sans-serif" font-size="11">`,
      `<title>${escape(`Timeline of ${this.#session.name}`)}</title><desc>${summary}</desc>`,
      `<defs><pattern id="${mark}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
        `<rect width="1.8" height="6" fill="${palette.text}" fill-opacity=".3"/></pattern></defs>`,
      `<rect width="${width}" height="${height}" fill="${bg}"/>`,
    ];
    for (const time of found) {
      const x = (time - t0) * scale;
      parts.push(`<path d="M${n(x)} 6V${height}" stroke="${rule}"/>`);
      if (x < width - 50) parts.push(`<text x="${n(x + 4)}" y="14" fill="${muted}">${escape(moment(time, step))}</text>`);
    }
    /** Names come last, over the hatching. @type {string[]} */
    const labels = [];
    rows.forEach((row, r) => {
      const y = AXIS + r * ROW;
      if (r > 0 && row.lane !== rows[r - 1]?.lane) parts.push(`<path d="M0 ${y - 0.5}H${width}" stroke="${muted}" stroke-opacity=".45"/>`);
      spans.boxes(row, t0, t1, now, Math.max(NARROW_PX, narrow) / scale, (first, last, start, end) => {
        const i = int(row.items, first);
        const sum = spans.summed(row, first, last, now);
        const left = Math.max(0, (start - t0) * scale);
        const extent = Math.min(width, (end - t0) * scale) - left;
        if (extent < 0) return;
        const name = line(spans.nameOf(i), 80);
        const status = first === last ? int(spans.status, i) : DONE;
        const fill = sum.mixed ? palette.mixed : this.#fill(i, palette);
        const label = sum.count === 1 ? SIGN[status] + name : sum.mixed ? `${whole.format(sum.count)} phases` : `${whole.format(sum.count)} × ${name}`;
        const said = `${label}: ${duration(sum.busy)}${sum.count > 1 ? " in all" : ""}${status === DONE ? "" : ` (${STATUS[status]})`}`;
        const dash = status === 3 ? ' stroke-dasharray="6 3"' : status === 2 ? ' stroke-dasharray="2 2"' : "";
        const colour = palette.outlined ? palette.text : palette.edges[status];
        const edge = status !== DONE || palette.outlined ? ` stroke="${colour || fg}" stroke-width="1.5"${dash}` : "";
        parts.push(
          `<rect x="${n(left)}" y="${y}" width="${n(Math.max(1, extent - (extent > 4 ? 1 : 0)))}" height="${ROW - 1}" ` +
            `fill="${fill}"${edge}><title>${escape(said)}</title></rect>`,
        );
        const letters = Math.floor((extent - 10) / 6.4);
        if (letters < 3) return;
        const text = label.length <= letters ? label : `${cut(label, letters - 1)}…`;
        const direction = RIGHT_TO_LEFT.test(name) ? ' direction="rtl" text-anchor="end" unicode-bidi="isolate"' : "";
        const ground = first === last && hatched.has(i) ? ` stroke="${fill}" stroke-width="4" paint-order="stroke"` : "";
        labels.push(`<text x="${n(left + 5)}" y="${y + 14}" fill="${palette.text}"${ground}${direction}>${escape(text)}</text>`);
      });
    });
    for (const { span, start, end } of silences) {
      const row = spans.rowOf(span);
      const r = row ? rows.indexOf(row) : -1;
      const left = Math.max(0, (start - t0) * scale);
      const right = Math.min(width, (end - t0) * scale);
      if (r < 0 || right - left < 1) continue;
      const said = `${line(spans.nameOf(span), 80)}: no callback for ${duration(end - start)}`;
      parts.push(
        `<rect x="${n(left)}" y="${AXIS + r * ROW}" width="${n(right - left)}" height="${ROW - 1}" fill="url(#${mark})">` +
          `<title>${escape(said)}</title></rect>`,
      );
    }
    parts.push(`<g pointer-events="none">${labels.join("")}</g></svg>\n`);
    return parts.join("\n");
  }
}

/** anywidget calls this once per model, so that its views share a session. */
export default () => {
  /** @type {Session | undefined} */
  let session;

  /** @type {Initialize<TimelineState>} */
  function initialize({ model, signal }) {
    session = new Session(model, signal);
  }

  /** @type {Render<TimelineState>} */
  function render({ model, el }) {
    session ??= new Session(model);
    const view = new View(session, el);
    return () => view.dispose();
  }

  return { initialize, render };
};
