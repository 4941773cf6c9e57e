// The overview of many builds, drawn from data only: ../overview.py says what there is to know, this module says how it
// looks. Rows are there for what is seen only; the kernel sorts, filters and sends them. Clocks tick here. Names, phases
// and errors go through `textContent` or an attribute and are never parsed as HTML.

/** @import { AnyModel, Initialize, Render } from "@anywidget/types" */

/** @typedef {"pending" | "running" | "cancelling" | "succeeded" | "cancelled" | "failed"} Status */

/**
 * The trait `head`; every key may be missing. Times are the kernel's, in epoch seconds.
 *
 * @typedef {object} Head
 * @property {string} [id] hexadecimal; what a saved notebook keeps of this queue has it in a class
 * @property {string} [name] untrusted
 * @property {Status} [status] of the whole
 * @property {Partial<Record<Status, number>>} [counts]
 * @property {number} [total]
 * @property {number} [cached] how many engines came from the cache
 * @property {number | null} [progress] 0 to 1
 * @property {number | null} [eta_s] seconds left at `now`
 * @property {string} [basis] where the estimate comes from, for people
 * @property {string} [waiting] that it waits, and what for; untrusted
 * @property {boolean} [blocked] whether that is another queue, which can be cancelled from here
 * @property {boolean} [replaced] the cell was run again and shows another queue
 * @property {number} [now] when this was sent
 */

/**
 * Which rows there are, and in which order.
 *
 * @typedef {object} Order
 * @property {string} sort
 * @property {boolean} descending
 * @property {Status[]} statuses those that are shown; none for all
 * @property {string} text what a name, a place or an error contains
 */

/**
 * A build: its place in the order, then what is known of it. Times are the kernel's.
 *
 * @typedef {[place: number, index: number, name: string, status: Status, progress: number | null, eta_s: number | null,
 *   elapsed_s: number | null, since: number | null, phase: string, where: string, attempts: number,
 *   engine_bytes: number | null, cached: boolean, reason: string, error: string]} Sent
 */

/**
 * The trait `table`: of all rows in the order those that a view looks at.
 *
 * @typedef {{order?: Order, ticket?: string, matched?: number, rows?: Sent[]}} Table
 */

/**
 * The trait `selected`.
 *
 * @typedef {object} Selected
 * @property {number | null} [index]
 * @property {string} [ticket]
 * @property {string} [name] untrusted
 * @property {Status} [status]
 * @property {"none" | "card" | "waiting" | "ended" | "record"} [kind] a record is a text with tables
 * @property {string} [text] in place of a card
 */

/**
 * @typedef {object} OverviewState
 * @property {Head} head
 * @property {Table} table
 * @property {Selected} selected
 * @property {string | null} card reference to the model of the selected build's card
 * @property {string | null} channel reference to the model that requests go to
 */

/**
 * What is used of an ipywidgets model and view beyond anywidget's own types.
 *
 * @typedef {AnyModel & {comm_live?: boolean}} WidgetModel
 * @typedef {object} WidgetView
 * @property {HTMLElement} el
 * @property {(event: string) => void} trigger
 * @property {() => void} remove
 * @property {Promise<WidgetView | undefined>} [layoutPromise]
 * @property {Promise<WidgetView | undefined>} [stylePromise]
 * @typedef {{get_model(id: string): Promise<WidgetModel>, create_view(model: WidgetModel): Promise<WidgetView>}} Manager
 */

const TICK_MS = 500;
/** A view says that it looks, this often; the kernel forgets it after four times as long. */
const LOOK_MS = 15_000;
/** ... and this often while rows are missing: the first request may have gone to a shell that is busy with a cell. */
const ASK_MS = 2000;
/** Time between two windows that are asked for while one scrolls. */
const SCROLL_MS = 100;
/** Time between two searches while one types. */
const TYPE_MS = 150;
/** A kernel that confirms nothing for this long after a click is busy. */
const BUSY_MS = 2000;
/** What was asked for may be asked again after this long, if the kernel was heard of and it did not happen. */
const FORGET_MS = 10_000;
/** A kernel sends something every 2 s while builds run and somebody looks. */
const QUIET_S = 8;
/** A timer that is later than this was held up itself. */
const LATE_S = 2;
/** Counts are told aloud no more often than this. */
const RARELY_MS = 20_000;
/** Rows that are asked for above and below those that are seen. */
const BEYOND = 8;
/** Rows that are seen without scrolling. */
const MAX_ROWS_SEEN = 12;
const CLOCK_SAMPLES = 40;
const MOST = 0.999;

/** @type {Record<Status, readonly [icon: string, word: string]>} */
const STATUS = {
  pending: ["○", "Pending"],
  running: ["●", "Running"],
  cancelling: ["■", "Cancelling…"],
  succeeded: ["✓", "Succeeded"],
  cancelled: ["■", "Cancelled"],
  failed: ["✕", "Failed"],
};

/** The chips: each counts one state, or two that people don't tell apart. @type {readonly (readonly Status[])[]} */
const CHIPS = [["running", "cancelling"], ["pending"], ["succeeded"], ["failed"], ["cancelled"]];

/** The columns: by what each sorts, its heading, and the first letters of its classes. */
const COLUMNS = /** @type {const} */ ([
  ["status", "Status"],
  ["name", "Build"],
  ["progress", "Progress"],
  ["elapsed_s", "Time", "elapsed"],
  ["eta_s", "Left", "left"],
  ["phase", "Phase", "detail"],
  ["where", "Where"],
  ["attempts", "Tries"],
  ["engine_bytes", "Engine", "size"],
]);

/** The buttons that cancel more than one build. */
const CANCELS = { pending: "Cancel pending", all: "Cancel all", blocker: "Cancel that queue" };

/** Why a build was cancelled. @type {Record<string, string>} */
const REASONS = {
  user: "",
  deadline: "its time was up",
  interrupt: "by Interrupt",
  closed: "it was closed",
  monitor: "by another progress monitor",
};

// ---------------------------------------------------------------------------------------------------- text and DOM

const whole = new Intl.NumberFormat("en-US");

/** Minutes and hours with colons. @param {number} seconds */
function colons(seconds) {
  const s = Math.floor(seconds);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

/** A duration that is still growing. @param {number} seconds */
function growing(seconds) {
  const s = Math.max(0, seconds);
  return s < 60 ? `${Math.floor(s)} s` : colons(s);
}

/** A duration that is over. @param {number} seconds */
function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 0.1) return s === 0 ? "0 s" : `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  return s < 59.95 ? `${s.toFixed(1)} s` : colons(s);
}

/** A time left, no more exact than such a thing is known. @param {number} seconds */
function roughly(seconds) {
  if (seconds < 7.5) return "~5 s";
  const to = (/** @type {number} */ unit) => Math.max(1, Math.round(seconds / unit)) * unit;
  if (seconds < 57.5) return `~${to(5)} s`;
  if (seconds < 57.5 * 60) return `~${to(60) / 60} min`;
  return `~${to(1800) / 3600} h`;
}

/** The same in words. @param {number} seconds */
function roughlySaid(seconds) {
  return seconds < 7.5 ? "a few seconds" : roughly(seconds).replace("~", "about ");
}

/** @param {number} bytes */
function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** @param {number} fraction */
function percent(fraction) {
  return `${Math.floor(fraction * 100)} %`;
}

/** A finite number, or null. @param {unknown} value @returns {number | null} */
function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string} [className] @returns {HTMLElementTagNameMap[K]} */
function make(tag, className) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  return element;
}

/** @param {string} className @param {string} role */
function part(className, role) {
  const element = make("div", className);
  element.setAttribute("role", role);
  return element;
}

/** One that is `aria-disabled` does nothing. @param {string} className @param {() => void} onClick */
function button(className, onClick) {
  const element = make("button", className);
  element.type = "button";
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") onClick();
  });
  return element;
}

/** For text that only decorates what another text says. @param {string} className */
function decoration(className) {
  const element = make("span", className);
  element.setAttribute("aria-hidden", "true");
  return element;
}

/** For text of unknown direction. @param {string} className */
function foreign(className) {
  const element = make("bdi", className);
  element.dir = "auto";
  return element;
}

/** Set a text, touching the page only if it differs. @param {Element} element @param {string} text */
function setText(element, text) {
  const node = element.firstChild;
  if (node instanceof Text && node === element.lastChild) {
    if (node.data !== text) node.data = text;
  } else if (node || text) {
    element.textContent = text;
  }
}

/** Set an attribute, or remove it for null. @param {Element} element @param {string} name @param {string | null} value */
function setAttribute(element, name, value) {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
}

/** @param {HTMLElement} element @param {string} name @param {string} value */
function setStyle(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/** @param {HTMLElement} element @param {boolean} shown */
function setShown(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** @param {string} reference as in "IPY_MODEL_0123…" */
function modelId(reference) {
  return reference.replace(/^(IPY_MODEL_|anywidget:)/, "");
}

/** @param {WidgetView} view */
function removeView(view) {
  view.remove();
  // A DOMWidgetView leaves these two behind, with listeners on models that others share.
  void view.layoutPromise?.then((layout) => layout?.remove());
  void view.stylePromise?.then((style) => style?.remove());
}

function ticket() {
  return `${Math.random().toString(36).slice(2)}${Date.now().toString(36)}`;
}

/** @param {Status | undefined} status */
function isFinal(status) {
  return status === "succeeded" || status === "cancelled" || status === "failed";
}

// ------------------------------------------------------------------------------------- what all views of a queue share

/** @type {Order} */
const PLAIN = { sort: "index", descending: false, statuses: [], text: "" };

/** What a person asked to be cancelled: a build by its index, or many. @typedef {number | "pending" | "all" | "blocker"} Target */

/** The connection of one overview to the kernel; its views come and go. */
class Session {
  /** The views' way to be drawn again. @type {Set<() => void>} */
  listeners = new Set();
  /** What was clicked and has not happened yet, and when. @type {Map<Target, number>} */
  asked = new Map();
  /** @type {AnyModel<OverviewState>} */
  #model;
  /** @type {WidgetModel | null} */
  #channel = null;
  /** The windows that views see. @type {Map<string, readonly [first: number, count: number]>} */
  #looking = new Map();
  /** When each window was asked for last. @type {Map<string, number>} */
  #said = new Map();
  /** What the kernel has not confirmed yet, and the ticket that it told before. @type {{ticket: string, order: Order, before: string} | null} */
  #ordered = null;
  /** @type {{ticket: string, index: number | null, before: string} | null} */
  #chosen = null;
  /** Begins the tickets of this page: others send theirs to the same kernel. */
  #own = ticket();
  #asks = 0;
  /** How far the kernel's clock is behind the monotonic one here. @type {number[]} */
  #offsets = [];
  /** When the kernel was last heard of, by the clock that nobody sets. */
  heardAt = performance.now();
  /** Seconds without a message, as far as one was awake to receive it. */
  quiet = 0;
  #ticked = performance.now();
  #gone = false;
  #onLive = () => this.#checkLive();

  /** @param {AnyModel<OverviewState>} model @param {AbortSignal} [signal] */
  constructor(model, signal) {
    this.#model = model;
    this.#hear();
    model.on("change:head", () => this.#hear());
    for (const name of /** @type {const} */ (["table", "selected", "card"])) model.on(`change:${name}`, () => this.changed());
    model.on("change:channel", () => void this.#connect());
    signal?.addEventListener("abort", () => this.#channel?.off("comm_live_update", this.#onLive));
    void this.#connect();
  }

  get head() {
    return this.#model.get("head") ?? {};
  }

  get table() {
    return this.#model.get("table") ?? {};
  }

  /** @returns {Selected} */
  get selected() {
    return this.#model.get("selected") ?? {};
  }

  get card() {
    return this.#model.get("card") ?? null;
  }

  get status() {
    const { status } = this.head;
    return status && status in STATUS ? status : "pending";
  }

  get final() {
    return isFinal(this.status);
  }

  /** The order that was asked for last. @returns {Order} */
  get order() {
    return this.#ordered?.order ?? { ...PLAIN, ...this.table.order };
  }

  /** The number of the build that was selected last. */
  get index() {
    return this.#chosen ? this.#chosen.index : (number(this.selected.index) ?? null);
  }

  /** Whether nobody is there any more who could answer. */
  get gone() {
    return this.#gone;
  }

  /** Whether the kernel has shown the selection yet. */
  get choosing() {
    return this.#chosen !== null;
  }

  /** What is known of the kernel. @returns {"live" | "quiet" | "gone"} */
  get contact() {
    if (this.#gone) return this.final ? "live" : "gone";
    const beats = this.status === "running" || this.status === "cancelling";
    return beats && this.quiet > QUIET_S ? "quiet" : "live";
  }

  get #offset() {
    return this.#offsets.length > 0 ? Math.min(...this.#offsets) : (performance.now() - Date.now()) / 1000;
  }

  /** Seconds since the last message; they stand still when none comes. */
  get age() {
    return Math.min((performance.now() - this.heardAt) / 1000, QUIET_S);
  }

  /** The kernel's time. */
  get now() {
    return this.heardAt / 1000 + this.age - this.#offset;
  }

  /** Whether a click waits for an answer that should have been there. */
  get busy() {
    const now = performance.now();
    return [...this.asked.values()].some((at) => now - at > BUSY_MS && this.heardAt < at);
  }

  /** Let time pass, while somebody looks. */
  tick() {
    const now = performance.now();
    this.quiet += Math.min((now - this.#ticked) / 1000, LATE_S);
    this.#ticked = now;
    for (const [target, at] of this.asked) if (now - at > FORGET_MS && this.heardAt > at) this.asked.delete(target);
  }

  /** Say that a view sees these rows; or, for null, none any more. @param {string} view @param {number | null} first @param {number} count @param {boolean} [missing] whether rows of them are */
  look(view, first, count, missing = false) {
    if (first === null) {
      if (!this.#looking.delete(view)) return;
      this.#said.delete(view);
      this.#send({ kind: "away", view });
      return;
    }
    const before = this.#looking.get(view);
    const since = performance.now() - (this.#said.get(view) ?? -Infinity);
    const same = before?.[0] === first && before[1] === count;
    if (!before) this.#awake();
    if (same && since < (missing ? ASK_MS : LOOK_MS)) return;
    this.#looking.set(view, [first, count]);
    this.#said.set(view, performance.now());
    this.#send({ kind: "look", view, first, count });
  }

  /** @param {Partial<Order>} change */
  sort(change) {
    if (this.#gone) return;
    const order = { ...this.order, ...change };
    this.#ordered = { ticket: this.#ticket(), order, before: this.table.ticket ?? "" };
    this.#sendOrder();
    this.changed();
  }

  /** @param {number | null} index */
  select(index) {
    if (this.#gone) return;
    this.#chosen = { ticket: this.#ticket(), index, before: this.selected.ticket ?? "" };
    this.#sendChoice();
    this.changed();
  }

  /** @param {Target} target */
  cancel(target) {
    if (this.#gone || this.asked.has(target)) return;
    this.asked.set(target, performance.now());
    this.#send(typeof target === "number" ? { kind: "cancel", index: target } : { kind: `cancel_${target}` });
    this.changed();
  }

  changed() {
    const { table, selected, head } = this;
    if (this.#ordered && this.#answers(table.ticket, this.#ordered)) this.#ordered = null;
    if (this.#chosen && this.#answers(selected.ticket, this.#chosen)) this.#chosen = null;
    if ((head.counts?.pending ?? 0) === 0) this.asked.delete("pending");
    if (!head.blocked) this.asked.delete("blocker");
    if (this.status !== "pending" && this.status !== "running") this.asked.delete("all");
    for (const [, index, , status] of table.rows ?? []) {
      if (status !== "pending" && status !== "running") this.asked.delete(index);
    }
    for (const listener of this.listeners) listener();
  }

  #ticket() {
    return `${this.#own}.${++this.#asks}`;
  }

  /**
   * Whether what the kernel tells is the answer. A new ticket of another page is one, too: of requests that came together
   * only the last is told. An earlier one of this page is not: this request is still under way.
   *
   * @param {string | undefined} told @param {{ticket: string, before: string}} request
   */
  #answers(told = "", { ticket, before }) {
    return told === ticket || (told !== before && !told.startsWith(`${this.#own}.`));
  }

  #sendOrder() {
    if (this.#ordered) this.#send({ kind: "order", ticket: this.#ordered.ticket, order: this.#ordered.order });
  }

  #sendChoice() {
    if (this.#chosen) this.#send({ kind: "select", ticket: this.#chosen.ticket, index: this.#chosen.index });
  }

  #awake() {
    this.quiet = 0;
    this.#ticked = performance.now();
  }

  #hear() {
    this.heardAt = performance.now();
    this.#awake();
    const sent = number(this.head.now);
    if (sent !== null) {
      const offset = this.heardAt / 1000 - sent;
      if (offset - this.#offset > 5) this.#offsets = []; // the kernel's clock was set back
      this.#offsets.push(offset);
      if (this.#offsets.length > CLOCK_SAMPLES) this.#offsets.shift();
    }
    this.changed();
  }

  /** @param {object} request */
  #send(request) {
    if (this.#channel && this.#channel.comm_live !== false) this.#channel.send(request);
  }

  async #connect() {
    const reference = this.#model.get("channel");
    /** @type {WidgetModel | null} */
    let channel = null;
    try {
      channel = reference ? await manager(this.#model).get_model(modelId(reference)) : null;
    } catch {
      // Without it the first rows are seen, and nothing can be asked for.
    }
    if (reference !== this.#model.get("channel")) return;
    this.#channel?.off("comm_live_update", this.#onLive);
    this.#channel = channel;
    channel?.on("comm_live_update", this.#onLive);
    // What was asked for before the connection.
    this.#sendOrder();
    this.#sendChoice();
    for (const [view, [first, count]] of this.#looking) this.#send({ kind: "look", view, first, count });
    this.#checkLive();
  }

  #checkLive() {
    this.#gone = this.#channel?.comm_live === false;
    this.changed();
  }
}

/** @param {AnyModel<OverviewState>} model @returns {Manager} */
function manager(model) {
  return /** @type {Manager} */ (/** @type {unknown} */ (model.widget_manager));
}

// ------------------------------------------------------------------------------------------------------------- rows

/** One row; a build keeps its row while it is seen, so that the focus stays with it. */
class Row {
  el = part("trt-q-row", "row");
  cancel;
  /** @type {Sent} */
  sent;
  #icon = decoration("trt-q-icon");
  #word = make("span");
  #name = foreign("trt-q-text");
  #bar = part("trt-q-bar", "progressbar");
  #fill = make("div", "trt-q-fill");
  #percent = decoration("trt-q-percent");
  #elapsed = part("trt-q-cell trt-q-elapsed", "gridcell");
  #left = part("trt-q-cell trt-q-left", "gridcell");
  #detail = foreign("trt-q-text");
  #where = foreign("trt-q-text");
  #tries = part("trt-q-cell trt-q-attempts", "gridcell");
  #size = part("trt-q-cell trt-q-size", "gridcell");

  /** @param {Sent} sent @param {(index: number) => void} onCancel */
  constructor(sent, onCancel) {
    this.sent = sent;
    this.cancel = button("trt-q-stop", () => onCancel(this.index));
    this.#bar.setAttribute("aria-valuemin", "0");
    this.#bar.setAttribute("aria-valuemax", "100");
    this.#bar.append(this.#fill);
    this.el.tabIndex = -1;
    this.el.append(
      ...[
        ["status", this.#icon, this.#word],
        ["name", this.#name],
        ["progress", this.#bar, this.#percent],
      ].map(cell),
      this.#elapsed,
      this.#left,
      ...[
        ["detail", this.#detail],
        ["where", this.#where],
      ].map(cell),
      this.#tries,
      this.#size,
      cell(["cancel", this.cancel]),
    );
    countColumns(this.el);
  }

  get index() {
    return this.sent[1];
  }

  get place() {
    return this.sent[0];
  }

  /** @param {Session} session @param {{height: number, active: boolean, selected: boolean}} state */
  draw(session, { height, active, selected }) {
    const [place, index, name, status, progress, , , since, phase, where, attempts, bytes, cached, reason, error] = this.sent;
    const { el } = this;
    const live = session.contact === "live";
    const asked = session.asked.has(index) || (status === "pending" && session.asked.has("pending")) || session.asked.has("all");
    const stopping = asked && (status === "pending" || status === "running");
    const shown = stopping ? "cancelling" : status;
    const lost = !live && !isFinal(status);
    setStyle(el, "transform", `translateY(${place * height}px)`);
    setAttribute(el, "aria-rowindex", String(place + 2));
    setAttribute(el, "aria-selected", String(selected));
    setAttribute(el, "data-index", String(index));
    setAttribute(el, "data-status", lost ? "lost" : shown);
    el.tabIndex = active ? 0 : -1;

    const [icon, word] = STATUS[shown] ?? ["?", shown];
    setText(this.#icon, lost ? "?" : icon);
    setText(this.#word, word);
    setText(this.#name, name);
    setAttribute(this.#name, "title", name);

    const running = status === "running" || status === "cancelling";
    const done = status === "succeeded" ? 1 : progress === null ? null : Math.min(progress, MOST);
    setShown(this.#bar, running || done !== null);
    setAttribute(this.#bar, "aria-label", `Progress of ${name}`);
    setAttribute(this.#bar, "aria-valuenow", done === null ? null : String(Math.floor(done * 100)));
    setAttribute(this.#bar, "aria-valuetext", done === null ? word : `${word}, ${percent(done)}`);
    setAttribute(this.#bar, "data-indeterminate", done === null && running && live ? "" : null);
    setStyle(this.#fill, "width", `${((done ?? 0) * 100).toFixed(1)}%`);
    setText(this.#percent, done === null || !running ? "" : percent(done));
    this.tick(session);

    let detail = "";
    if (error) detail = error;
    else if (cached) detail = "from the engine cache";
    else if (status === "cancelled") detail = REASONS[reason] ?? reason;
    else if (running) detail = phase || (since === null ? "" : "no phase yet");
    setText(this.#detail, detail);
    setAttribute(this.#detail, "title", detail || null);
    setText(this.#where, where);
    setAttribute(this.#where, "title", where || null);
    setText(this.#tries, attempts > 0 ? String(attempts) : "");
    setAttribute(this.#tries, "data-many", attempts > 1 ? "" : null);
    setText(this.#size, bytes === null ? "" : size(bytes));

    const { cancel } = this;
    const usable = (status === "pending" || running) && session.contact !== "gone";
    if (!usable && document.activeElement === cancel) el.focus({ preventScroll: true });
    setShown(cancel, usable);
    cancel.tabIndex = active ? 0 : -1;
    // Not `disabled`: that would take the focus away.
    setAttribute(cancel, "aria-disabled", String(stopping || status === "cancelling"));
    setAttribute(cancel, "aria-label", `Cancel ${name}`);
    setText(cancel, "Cancel");
  }

  /** Let the clocks tick. @param {Session} session */
  tick(session) {
    const [, , , status, , eta, elapsed, since] = this.sent;
    const seconds = since === null ? elapsed : session.now - since;
    setText(this.#elapsed, seconds === null ? "" : since === null ? duration(seconds) : growing(seconds));
    const left = eta !== null && status === "running" && session.contact === "live" ? Math.max(0, eta - session.age) : null;
    setText(this.#left, left === null ? "" : roughly(left));
  }
}

/** How many builds have come to an end, and to which, if not to a good one. @param {Head} head */
function summary({ counts = {}, total = 0 }) {
  const { succeeded = 0, failed = 0, cancelled = 0 } = counts;
  const ended = `${whole.format(succeeded + failed + cancelled)} of ${whole.format(total)}`;
  const others = [failed > 0 ? `, ${whole.format(failed)} failed` : "", cancelled > 0 ? `, ${whole.format(cancelled)} cancelled` : ""];
  return failed + cancelled > 0 ? `${ended} ended${others.join("")}` : `${ended} done`;
}

/** Say in which column each cell is: some are not shown. @param {HTMLElement} row */
function countColumns(row) {
  for (const [at, each] of [...row.children].entries()) each.setAttribute("aria-colindex", String(at + 1));
}

/** A cell with its parts. @param {(string | HTMLElement)[]} parts its name first */
function cell([name, ...parts]) {
  const element = part(`trt-q-cell trt-q-${name}`, "gridcell");
  element.append(...parts.filter((each) => each !== undefined));
  return element;
}

// ------------------------------------------------------------------------------------------------------ the selected

/** What stands below the table: the card of the selected build, or what is known of it without one. */
class Chosen {
  el = make("div", "trt-q-chosen");
  #head = make("div", "trt-q-chosen-head");
  #name = foreign("trt-q-chosen-name");
  #text = make("div", "trt-q-told");
  #host = make("div", "trt-q-card");
  #widgets;
  /** @type {string | null} */
  #reference = null;
  /** @type {WidgetView | null} */
  #view = null;
  /** Counts the cards: a view that comes too late is not shown. */
  #opening = 0;

  /** @param {Manager} widgets @param {() => void} onClose */
  constructor(widgets, onClose) {
    this.#widgets = widgets;
    const close = button("trt-q-close", onClose);
    close.setAttribute("aria-label", "Close the selected build");
    close.append("✕");
    this.el.hidden = true;
    this.el.setAttribute("role", "group");
    this.#text.dir = "auto";
    this.#head.append(this.#name, close);
    this.el.append(this.#head, this.#text, this.#host);
  }

  /** @param {Session} session */
  draw(session) {
    const { selected, index, choosing } = session;
    setShown(this.el, index !== null);
    const known = !choosing && selected.index === index;
    const name = known ? (selected.name ?? "") : "";
    // The card has the name itself.
    const carded = known && selected.kind === "card";
    setText(this.#name, carded ? "Selected build" : name);
    setAttribute(this.#name, "title", name || null);
    setAttribute(this.#name, "data-carded", carded ? "" : null);
    setAttribute(this.el, "aria-label", `Selected build ${name}`);
    const reference = known && selected.kind === "card" ? session.card : null;
    const told = known ? (selected.kind === "card" ? "" : (selected.text ?? "")) : "Loading the build…";
    if (reference !== this.#reference) {
      this.#reference = reference;
      void this.#show();
    }
    setShown(this.#text, told !== "");
    setText(this.#text, told);
    setAttribute(this.#text, "data-kind", known ? (selected.kind ?? null) : null);
    // What scrolls can be reached by the keyboard.
    setAttribute(this.#text, "tabindex", known && selected.kind === "record" ? "0" : null);
  }

  dispose() {
    this.#reference = null;
    this.#clear();
  }

  async #show() {
    this.#clear();
    const reference = this.#reference;
    const opening = this.#opening;
    if (reference === null) return;
    try {
      const view = await this.#widgets.create_view(await this.#widgets.get_model(modelId(reference)));
      if (opening !== this.#opening) {
        removeView(view);
        return;
      }
      this.#view = view;
      this.#host.replaceChildren(view.el);
      // A DOMWidgetView applies its layout once it is displayed.
      view.trigger("displayed");
    } catch {
      if (opening !== this.#opening) return;
      const missing = make("div", "trt-q-told");
      setText(missing, "This front end or the kernel does not have the card of the build.");
      this.#host.replaceChildren(missing);
    }
  }

  #clear() {
    this.#opening++;
    if (this.#view) removeView(this.#view);
    this.#view = null;
    this.#host.replaceChildren();
  }
}

// ---------------------------------------------------------------------------------------------------------- the view

/** One view of an overview. */
class View {
  #root = make("section", "trt-queue");
  #icon = decoration("trt-q-status-icon");
  #word = make("span");
  #name = foreign("trt-q-title");
  #cancelPending = button("trt-q-button", () => this.#session.cancel("pending"));
  #cancelAll = button("trt-q-button", () => this.#session.cancel("all"));
  #cancelBlocker = button("trt-q-button", () => this.#session.cancel("blocker"));
  #bar = part("trt-q-whole", "progressbar");
  #fill = make("div", "trt-q-fill");
  /** At the end: how many of the builds came to what. @type {(readonly [status: Status, el: HTMLElement])[]} */
  #shares = [];
  #percent = make("span", "trt-q-done");
  #left = make("span", "trt-q-time-left");
  #basis = foreign("trt-q-basis");
  #note = make("div", "trt-q-note");
  #noteText = foreign("trt-q-note-text");
  #chips = part("trt-q-chips", "group");
  /** @type {{statuses: readonly Status[], el: HTMLButtonElement, count: HTMLElement}[]} */
  #counts = [];
  #all = button("trt-q-chip", () => this.#session.sort({ statuses: [] }));
  #allCount = make("span", "trt-q-count");
  #search = make("input", "trt-q-search");
  #grid = part("trt-q-grid", "grid");
  /** @type {{sort: string, cell: HTMLElement, mark: HTMLElement}[]} */
  #headings = [];
  #body = part("trt-q-body", "rowgroup");
  #tall = make("div", "trt-q-tall");
  #probe = make("div", "trt-q-probe");
  #empty = make("div", "trt-q-empty");
  #emptyText = make("span");
  #showAll = button("trt-q-button", () => this.#showEverything());
  #chosen;
  #replaced = make("div", "trt-q-replaced");
  #live = make("div", "trt-q-live trt-q-unseen");
  #style = make("style");

  #session;
  #view = ticket();
  /** Rows by the builds' indexes. @type {Map<number, Row>} */
  #rows = new Map();
  /** The build whose row takes the focus. @type {number | null} */
  #active = null;
  /** The place of the row that gets the focus once it is there. @type {number | null} */
  #wanted = null;
  #height = 30;
  #said = "";
  #saidAt = -Infinity;
  #seen = false;
  #frame = 0;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #scrolling;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #typing;
  #abort = new AbortController();
  /** @type {{disconnect(): void}[]} */
  #observers = [];
  #schedule = () => {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  };

  /** @param {AnyModel<OverviewState>} model @param {Session} session @param {HTMLElement} host */
  constructor(model, session, host) {
    this.#session = session;
    this.#chosen = new Chosen(manager(model), () => this.#close());
    this.#build();
    host.append(this.#root);
    this.#listen();
    session.listeners.add(this.#schedule);
    this.#draw();
  }

  dispose() {
    this.#session.listeners.delete(this.#schedule);
    this.#session.look(this.#view, null, 0);
    this.#abort.abort();
    for (const observer of this.#observers) observer.disconnect();
    cancelAnimationFrame(this.#frame);
    clearInterval(this.#timer);
    clearTimeout(this.#scrolling);
    clearTimeout(this.#typing);
    this.#chosen.dispose();
    this.#root.remove();
  }

  #build() {
    const root = this.#root;
    root.setAttribute("role", "group");
    // Where the focus goes when the button that has it leaves.
    root.tabIndex = -1;
    // Lab's own keys (arrows, Enter, letters) are not meant here.
    root.dataset["lmSuppressShortcuts"] = "true";
    const pill = make("span", "trt-q-pill");
    pill.append(this.#icon, this.#word);
    setText(this.#cancelPending, "Cancel pending");
    setText(this.#cancelAll, "Cancel all");
    const head = make("div", "trt-q-head");
    head.append(pill, this.#name, this.#cancelPending, this.#cancelAll);

    this.#bar.setAttribute("aria-label", "All builds");
    this.#bar.setAttribute("aria-valuemin", "0");
    this.#bar.setAttribute("aria-valuemax", "100");
    this.#bar.append(this.#fill);
    for (const status of /** @type {const} */ (["succeeded", "failed", "cancelled"])) {
      const el = make("div", "trt-q-share");
      el.dataset["status"] = status;
      this.#bar.append(el);
      this.#shares.push([status, el]);
    }
    const outlook = make("div", "trt-q-outlook");
    outlook.append(this.#percent, this.#left, this.#basis);

    this.#chips.setAttribute("aria-label", "Show builds by status");
    this.#all.append("All", this.#allCount);
    this.#chips.append(this.#all);
    for (const statuses of CHIPS) {
      const [icon, word] = STATUS[/** @type {Status} */ (statuses[0])];
      const el = button("trt-q-chip", () => this.#filter(statuses));
      const sign = decoration("trt-q-icon");
      const count = make("span", "trt-q-count");
      setText(sign, icon);
      el.dataset["status"] = statuses[0];
      el.append(sign, word, count);
      this.#chips.append(el);
      this.#counts.push({ statuses, el, count });
    }
    this.#search.type = "search";
    this.#search.placeholder = "Search";
    this.#search.maxLength = 200;
    this.#search.setAttribute("aria-label", "Search builds by name, place or error");
    const tools = make("div", "trt-q-tools");
    tools.append(this.#chips, this.#search);

    const headings = part("trt-q-headings", "row");
    headings.setAttribute("aria-rowindex", "1");
    for (const [sort, title, name = sort] of COLUMNS) {
      const heading = part(`trt-q-heading trt-q-${name}`, "columnheader");
      const mark = decoration("trt-q-mark");
      const press = button("trt-q-sort", () => this.#sort(sort));
      press.append(title, mark);
      heading.append(press);
      headings.append(heading);
      this.#headings.push({ sort, cell: heading, mark });
    }
    const last = part("trt-q-heading trt-q-cancel", "columnheader");
    last.append(Object.assign(make("span", "trt-q-unseen"), { textContent: "Cancel" }));
    headings.append(last);
    countColumns(headings);
    const group = part("trt-q-top", "rowgroup");
    group.append(headings);
    this.#grid.setAttribute("aria-label", "Builds");
    this.#grid.setAttribute("aria-colcount", String(COLUMNS.length + 1));
    this.#tall.setAttribute("role", "presentation");
    this.#body.append(this.#tall);
    this.#probe.setAttribute("aria-hidden", "true");
    this.#grid.append(group, this.#body);

    setText(this.#showAll, "Show all builds");
    this.#empty.append(this.#emptyText, this.#showAll);
    setText(this.#replaced, "The cell was run again: this view goes when its builds have ended.");
    this.#live.setAttribute("role", "status");
    this.#live.setAttribute("aria-live", "polite");
    this.#note.append(this.#noteText, this.#cancelBlocker);
    root.append(head, this.#bar, outlook, this.#note, tools, this.#grid, this.#empty, this.#chosen.el);
    root.append(this.#replaced, this.#live, this.#probe, this.#style);
  }

  #listen() {
    const { signal } = this.#abort;
    const body = this.#body;
    const resized = new ResizeObserver(() => this.#schedule());
    resized.observe(this.#root);
    resized.observe(body);
    const seen = new IntersectionObserver((entries) => {
      this.#seen = entries.at(-1)?.isIntersecting ?? false;
      this.#schedule();
    });
    seen.observe(this.#root);
    this.#observers.push(resized, seen);
    document.addEventListener("visibilitychange", this.#schedule, { signal });
    body.addEventListener("scroll", () => this.#onScroll(), { signal, passive: true });
    body.addEventListener("click", (event) => this.#onClick(event), { signal });
    body.addEventListener("keydown", (event) => this.#onKey(event), { signal });
    body.addEventListener("focusin", (event) => this.#onFocus(event), { signal });
    body.addEventListener("focusout", (event) => this.#onBlur(event), { signal });
    this.#search.addEventListener("input", () => this.#onType(), { signal });
  }

  // ------------------------------------------------------------------------------------------- what a person does

  /** @param {readonly Status[]} statuses */
  #filter(statuses) {
    const { order } = this.#session;
    const on = statuses.every((status) => order.statuses.includes(status));
    const others = order.statuses.filter((status) => !statuses.includes(status));
    this.#session.sort({ statuses: on ? others : [...others, ...statuses] });
    this.#body.scrollTop = 0;
  }

  /** Up, down, and back to the order of the queue. @param {string} sort */
  #sort(sort) {
    const { order } = this.#session;
    if (order.sort !== sort) this.#session.sort({ sort, descending: false });
    else if (!order.descending) this.#session.sort({ descending: true });
    else this.#session.sort({ sort: "index", descending: false });
  }

  #showEverything() {
    clearTimeout(this.#typing);
    this.#typing = undefined;
    this.#search.value = "";
    this.#session.sort({ statuses: [], text: "" });
    this.#search.focus({ preventScroll: true });
  }

  #onType() {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => {
      this.#typing = undefined;
      this.#session.sort({ text: this.#search.value.trim() });
      this.#body.scrollTop = 0;
    }, TYPE_MS);
  }

  #onScroll() {
    this.#schedule();
    this.#scrolling ??= setTimeout(() => {
      this.#scrolling = undefined;
      this.#look();
    }, SCROLL_MS);
  }

  /** The row in which something happened. @param {Event} event */
  #rowOf(event) {
    const el = event.target instanceof Element ? event.target.closest(".trt-q-row") : null;
    return el instanceof HTMLElement ? this.#rows.get(Number(el.dataset["index"])) : undefined;
  }

  /** @param {MouseEvent} event */
  #onClick(event) {
    if (event.target instanceof Element && event.target.closest("button")) return;
    const row = this.#rowOf(event);
    if (!row) return;
    // Not what was selected as text.
    if (document.getSelection()?.toString()) return;
    this.#select(row);
  }

  /** @param {Row} row */
  #select(row) {
    this.#active = row.index;
    this.#session.select(this.#session.index === row.index ? null : row.index);
  }

  #close() {
    const index = this.#session.index;
    this.#session.select(null);
    const row = index === null ? undefined : this.#rows.get(index);
    (row?.el ?? this.#root).focus({ preventScroll: true });
  }

  /** @param {FocusEvent} event */
  #onFocus(event) {
    const row = this.#rowOf(event);
    if (!row || row.index === this.#active) return;
    this.#active = row.index;
    this.#wanted = null;
    this.#schedule();
  }

  /** Who goes elsewhere waits for no row. @param {FocusEvent} event */
  #onBlur(event) {
    const to = event.relatedTarget;
    if (!(to instanceof Node && this.#body.contains(to))) this.#wanted = null;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const row = this.#rowOf(event);
    if (!row || event.ctrlKey || event.altKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.#body.clientHeight / this.#height) - 1);
    const last = Math.max(0, (this.#session.table.matched ?? 0) - 1);
    // Where the focus is, or is about to be.
    const at = this.#wanted ?? row.place;
    const places = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: last,
    };
    if (event.key in places) {
      this.#go(Math.min(Math.max(0, places[/** @type {keyof typeof places} */ (event.key)]), last));
    } else if (event.key === "Escape" && this.#session.index !== null) {
      this.#session.select(null);
    } else if ((event.key === "Enter" || event.key === " ") && event.target === row.el) {
      this.#select(row);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Give the focus to the row at a place, now or when it is there. @param {number} place */
  #go(place) {
    const body = this.#body;
    const top = place * this.#height;
    if (top < body.scrollTop) body.scrollTop = top;
    else if (top + this.#height > body.scrollTop + body.clientHeight) body.scrollTop = top + this.#height - body.clientHeight;
    this.#wanted = place;
    this.#draw();
  }

  // ------------------------------------------------------------------------------------------------------- looking

  /** The rows that are seen, and some around them. @returns {readonly [first: number, count: number]} */
  get #window() {
    const seen = Math.ceil(this.#body.clientHeight / this.#height) || MAX_ROWS_SEEN;
    const top = Math.floor(this.#body.scrollTop / this.#height);
    // In steps, so that not every row that is scrolled by asks for others.
    const first = Math.max(0, Math.floor((top - BEYOND) / BEYOND) * BEYOND);
    return [first, Math.min(100, seen + 3 * BEYOND)];
  }

  /** Tell the kernel what is seen. */
  #look() {
    const seen = this.#seen && !document.hidden;
    if (!seen) {
      this.#session.look(this.#view, null, 0);
      return;
    }
    const [first, count] = this.#window;
    const { matched = 0, rows = [] } = this.#session.table;
    const top = Math.floor(this.#body.scrollTop / this.#height);
    const places = new Set(rows.map(([place]) => place));
    const bottom = Math.min(matched, top + Math.ceil(this.#body.clientHeight / this.#height));
    let missing = this.#session.choosing;
    for (let place = top; place < bottom && !missing; place++) missing = !places.has(place);
    this.#session.look(this.#view, first, count, missing);
  }

  // ------------------------------------------------------------------------------------------------------ drawing

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#abort.signal.aborted) return;
    this.#drawHead();
    this.#drawTools();
    this.#drawRows();
    this.#chosen.draw(this.#session);
    this.#hideSaved();
    this.#announce();
    this.#look();
    const ticking = this.#seen && !document.hidden;
    if (ticking && this.#timer === undefined) {
      this.#timer = setInterval(() => this.#tick(), TICK_MS);
    } else if (!ticking) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
  }

  #tick() {
    this.#session.tick();
    this.#drawHead();
    for (const row of this.#rows.values()) row.tick(this.#session);
    this.#announce();
    this.#look();
  }

  #drawHead() {
    const session = this.#session;
    const { head, status, final, contact } = session;
    const counts = head.counts ?? {};
    const live = contact === "live";
    const stopping = session.asked.has("all") && !final;
    const shown = stopping ? "cancelling" : status;
    const [icon, word] = STATUS[shown];
    const total = head.total ?? 0;
    const name = head.name || "Builds";
    setAttribute(this.#root, "data-status", shown);
    setAttribute(this.#root, "data-lost", live ? null : contact);
    setAttribute(this.#root, "aria-label", `TensorRT builds: ${name}`);
    setText(this.#icon, live ? icon : "?");
    // Of a queue of which most went well, the word alone would say that all was in vain.
    const bad = status === "failed" || status === "cancelled" ? (counts[status] ?? 0) : 0;
    const part = bad > 0 && bad < total ? `${whole.format(bad)} of ${whole.format(total)} ${word.toLowerCase()}` : word;
    setText(this.#word, live ? part : contact === "gone" ? "Kernel gone" : "No news");
    setText(this.#name, name);
    setAttribute(this.#name, "title", name);

    const active = !final && contact !== "gone";
    const pending = counts.pending ?? 0;
    for (const [press, target, usable] of /** @type {const} */ ([
      [this.#cancelPending, "pending", active && pending > 0 && status !== "cancelling"],
      [this.#cancelAll, "all", active],
      [this.#cancelBlocker, "blocker", active && head.blocked === true],
    ])) {
      if (!usable && document.activeElement === press) this.#root.focus({ preventScroll: true });
      setShown(press, usable);
      const asked = session.asked.has(target) || shown === "cancelling";
      setAttribute(press, "aria-disabled", String(asked));
      setText(press, asked ? "Cancelling…" : CANCELS[target]);
    }

    const progress = final ? 1 : number(head.progress);
    const shownProgress = progress === null ? null : final ? 1 : Math.min(progress, MOST);
    const eta = number(head.eta_s);
    const left = active && eta !== null && live && status === "running" ? `${roughlySaid(Math.max(0, eta - session.age))} left` : "";
    const cached = head.cached ?? 0;
    const said = `${summary(head)}${cached > 0 ? `, ${whole.format(cached)} from the engine cache` : ""}`;
    setAttribute(this.#bar, "aria-valuenow", shownProgress === null ? null : String(Math.floor(shownProgress * 100)));
    setAttribute(this.#bar, "aria-valuetext", [said, left].filter(Boolean).join(", "));
    setStyle(this.#fill, "width", final ? "0%" : `${((shownProgress ?? 0) * 100).toFixed(1)}%`);
    for (const [status, el] of this.#shares) {
      setStyle(el, "width", final && total > 0 ? `${(((counts[status] ?? 0) / total) * 100).toFixed(2)}%` : "0%");
    }
    setText(this.#percent, said);
    setText(this.#left, left);
    setText(this.#basis, left ? (head.basis ?? "") : "");
    setAttribute(this.#basis, "title", left ? head.basis || null : null);

    let note = "";
    if (contact === "gone") note = "The kernel has gone, and with it the builds that it ran.";
    else if (session.gone) note = "The kernel has gone: no other builds can be looked at here.";
    else if (contact === "quiet") note = `No news from the kernel for ${growing(session.quiet)}; it may be busy, restarted or gone.`;
    else if (session.busy) note = "The kernel is busy; if this lasts, use Kernel ▸ Interrupt.";
    else if (head.waiting && !final) note = head.waiting.charAt(0).toUpperCase() + head.waiting.slice(1);
    else if (status === "pending") note = "Not started yet";
    setText(this.#noteText, note);
    setShown(this.#note, note !== "");
    setAttribute(this.#note, "data-kind", !live || session.gone || session.busy ? "lost" : null);
    setShown(this.#replaced, head.replaced === true && !final);
  }

  #drawTools() {
    const { head, order } = this.#session;
    const counts = head.counts ?? {};
    setText(this.#allCount, whole.format(head.total ?? 0));
    setAttribute(this.#all, "aria-pressed", String(order.statuses.length === 0));
    for (const { statuses, el, count } of this.#counts) {
      const many = statuses.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
      setText(count, whole.format(many));
      setAttribute(el, "aria-pressed", String(statuses.every((status) => order.statuses.includes(status))));
      setAttribute(el, "data-none", many === 0 ? "" : null);
    }
    // What is being typed stays.
    if (this.#typing === undefined && document.activeElement !== this.#search && this.#search.value !== order.text) {
      this.#search.value = order.text;
    }
    for (const { sort, cell: heading, mark } of this.#headings) {
      const on = order.sort === sort;
      setAttribute(heading, "aria-sort", on ? (order.descending ? "descending" : "ascending") : "none");
      setText(mark, on ? (order.descending ? "▾" : "▴") : "");
    }
  }

  #drawRows() {
    const session = this.#session;
    const { table, order } = session;
    const matched = table.matched ?? 0;
    this.#height = this.#probe.offsetHeight || this.#height;
    const height = this.#height;
    setStyle(this.#tall, "height", `${matched * height}px`);
    setStyle(this.#body, "max-height", `${MAX_ROWS_SEEN * height}px`);
    setAttribute(this.#grid, "aria-rowcount", String(matched + 1));
    setAttribute(this.#grid, "data-scrolls", matched > MAX_ROWS_SEEN ? "" : null);
    if (matched === 0 && this.#grid.contains(document.activeElement)) this.#root.focus({ preventScroll: true });
    setShown(this.#grid, matched > 0);
    setShown(this.#empty, matched === 0);
    const filtered = order.text !== "" || order.statuses.length > 0;
    setText(this.#emptyText, filtered ? "No build fits the search and the states that are chosen." : "There are no builds.");
    if (!filtered && document.activeElement === this.#showAll) this.#root.focus({ preventScroll: true });
    setShown(this.#showAll, filtered);

    const [first, count] = this.#window;
    const told = table.rows ?? [];
    const held = [...this.#rows.values()].find((row) => row.el.contains(document.activeElement));
    // Where the row with the focus was, if another is there now or none any more.
    const left = held && this.#leaves(held) ? Math.min(held.place, matched - 1) : null;
    const rows = told.filter(
      ([place, index]) => (place >= first && place < first + count) || place === left || index === held?.index,
    );
    const wanted = new Set(rows.map(([, index]) => index));
    for (const [index, row] of this.#rows) {
      // The row with the focus stays, wherever it is now.
      if (wanted.has(index) || row === held) continue;
      row.el.remove();
      this.#rows.delete(index);
    }
    for (const sent of rows) {
      const [place, index] = sent;
      let row = this.#rows.get(index);
      if (row) row.sent = sent;
      else {
        row = new Row(sent, (target) => session.cancel(target));
        this.#rows.set(index, row);
        this.#tall.append(row.el);
      }
      if (place === this.#wanted && this.#body.contains(document.activeElement)) {
        this.#wanted = null;
        this.#focus(row);
      }
    }
    if (held && left !== null) {
      if (held.el.contains(document.activeElement)) {
        const next = rows.find(([place]) => place === left);
        this.#focus(next && this.#rows.get(next[1]));
      }
      held.el.remove();
      this.#rows.delete(held.index);
    }
    if (this.#active === null || !this.#rows.has(this.#active)) {
      this.#active = rows.find(([place]) => place * height >= this.#body.scrollTop)?.[1] ?? rows[0]?.[1] ?? null;
    }
    for (const [index, row] of this.#rows) {
      row.draw(session, { height, active: index === this.#active, selected: index === session.index });
    }
  }

  /** Whether a row is not in the order any more, or out of sight while another has its place. @param {Row} row */
  #leaves(row) {
    const { matched = 0, rows = [] } = this.#session.table;
    if (rows.some(([, index]) => index === row.index)) return false;
    return row.place >= matched || rows.some(([place]) => place === row.place);
  }

  /** Give the focus to a row, or, where there is none, to the whole. @param {Row | undefined} row */
  #focus(row) {
    if (row) {
      this.#active = row.index;
      row.el.tabIndex = 0;
    }
    (row?.el ?? this.#root).focus({ preventScroll: true });
  }

  /** Hide what a saved notebook shows of the builds in place of this view. */
  #hideSaved() {
    const { head, final } = this.#session;
    const id = head.id ?? "";
    const usable = /^[0-9a-f]{1,64}$/.test(id);
    const saved = `.trt-saved-${id}${final ? "" : ":empty"}`;
    const output = `.jp-OutputArea-child:has(> .jp-OutputArea-output > ${saved})`;
    // A browser drops a rule with a selector that it does not know, so each has its own.
    const rules = [saved, output].map((selector) => `${selector} { display: none !important; }`);
    setText(this.#style, usable ? rules.join("\n") : "");
  }

  /** Tell those who listen how far it is, not too often. */
  #announce() {
    const { head, final, contact } = this.#session;
    const told = summary(head);
    const text = contact === "gone" ? "Kernel gone" : final ? `${STATUS[this.#session.status][1]}: ${told}` : told;
    if (text === this.#said) return;
    const first = this.#said === "";
    const now = performance.now();
    if (!first && !final && contact === "live" && now - this.#saidAt < RARELY_MS) return;
    this.#said = text;
    this.#saidAt = now;
    // What is there from the beginning is read like everything else.
    if (!first) setText(this.#live, text);
  }
}

/** anywidget calls this once per model, so that its views share a session. */
export default () => {
  /** @type {Session | undefined} */
  let session;

  /** @type {Initialize<OverviewState>} */
  function initialize({ model, signal }) {
    session = new Session(model, signal);
  }

  /** @type {Render<OverviewState>} */
  function render({ model, el }) {
    session ??= new Session(model);
    const view = new View(model, session, el);
    return () => view.dispose();
  }

  return { initialize, render };
};
