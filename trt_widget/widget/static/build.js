// The live view of a build, drawn from data only: the models of ../models.py say what there is to know, this module
// says how it looks. Clocks tick here, from start times, so that the kernel sends only what changed. Whatever comes
// from a model file or from TensorRT goes through `textContent` or an attribute and is never parsed as HTML.

/** @import { AnyModel, Initialize, Render } from "@anywidget/types" */

/** @typedef {"pending" | "running" | "cancelling" | "succeeded" | "cancelled" | "failed" | "ended"} Status */
/** @typedef {"running" | "done" | "cancelled" | "failed" | "ended"} RowStatus */

/**
 * The trait `header`; every key may be missing. Times are the kernel's, in epoch seconds.
 *
 * @typedef {object} Header
 * @property {string} [name] the model's display name: untrusted
 * @property {Status} [status]
 * @property {string} [backend] package and version
 * @property {string | null} [device]
 * @property {"process" | "thread" | "dask" | "attached" | "followed" | "auto"} [executor] where the builder runs
 * @property {string | null} [where] the same in words
 * @property {number | null} [grace] seconds from a cancel until the build process is ended; null where there is none
 * @property {number | null} [started] when it became `running`
 * @property {number | null} [ended]
 * @property {number | null} [last_callback]
 * @property {number | null} [cancel_requested]
 * @property {number | null} [stop_latency_s] from the request to the end
 * @property {string | null} [ending] how a cancelled build came to its end
 * @property {boolean} [cached] the engine was built before
 * @property {number | null} [peak_memory_bytes]
 * @property {string[]} [notes] sentences about how it runs or ran
 * @property {string | null} [detail] a sentence for people
 * @property {Failure | null} [failure] all that is known about a failure
 * @property {string | null} [blocked_by] the build that a pending one waits for
 * @property {boolean} [can_cancel_blocker] whether that build is one of this kernel
 * @property {boolean} [can_cancel]
 * @property {number} [cancels_refused] how often nobody could be asked to cancel; the notes say why
 * @property {number | null} [engine_bytes]
 * @property {number} [now] when this was sent; each message to the card carries it, and there is one every 2 s or so
 * @property {boolean} [beats] false while no messages are to be expected, because the build was not started
 * @property {number} [warnings]
 * @property {number} [errors]
 * @property {number} [more_paths] paths that no row stands for
 * @property {boolean} [replaced] the cell was run again and shows another build
 * @property {number | null} [progress] 0 to 1; null where nothing honest can be said
 * @property {number | null} [eta_s] seconds left at `now`
 * @property {boolean} [exceeded] it takes longer than it should by what is known
 * @property {string | null} [basis] where the estimate comes from, for people
 * @property {number | null} [usual_s] what the build was expected to take in all
 * @property {Slow[]} [slowest] after the end, the slowest first
 * @property {string} [build_id] hexadecimal; what a saved notebook keeps of this build has it in a class
 */

/**
 * One of the slowest phases; all of it may hold foreign text.
 *
 * @typedef {object} Slow
 * @property {string} [label]
 * @property {string} [path]
 * @property {number} [self_s] seconds in it and in no phase below it
 * @property {number} [share] of the whole build, 0 to 1
 */

/**
 * What is known about a failure; `cause` is the header's `detail`. All of it may hold foreign text.
 *
 * @typedef {object} Failure
 * @property {string} [cause]
 * @property {[name: string, value: string][]} [facts]
 * @property {string} [details] tables and quotations, as plain text
 * @property {string[]} [evidence]
 * @property {string} [remedy]
 * @property {string[]} [words] TensorRT's messages that are not among the card's
 * @property {number} [more] how many more of those there are
 */

/**
 * The trait `info` of a row's bar; every key may be missing.
 *
 * @typedef {object} Info
 * @property {string} [label]
 * @property {string} [path]
 * @property {number} [depth]
 * @property {number} [count] instances of this path
 * @property {RowStatus} [status]
 * @property {number} [step] of the latest instance
 * @property {number} [total] of the latest instance; below 1 it is unknown
 * @property {number} [elapsed] seconds of the finished instances
 * @property {number | null} [since] start of the open instance
 * @property {number | null} [touched] last callback of this row
 * @property {number} [folded] paths below it that have no row
 */

/** @typedef {{time?: number, severity?: string, message?: string}} Message */
/**
 * @typedef {object} CardState
 * @property {Header} header
 * @property {string[]} rows references to the models of the bars
 * @property {string | null} cancel_channel reference to the model that requests go to
 * @property {string | null} [timeline] reference to the model of the timeline
 * @property {Message[]} messages
 * @property {string} printed
 */

/**
 * What is used of an ipywidgets model and view beyond anywidget's own types.
 *
 * @typedef {AnyModel & {comm_live?: boolean, model_id?: string}} WidgetModel
 * @typedef {object} WidgetView
 * @property {HTMLElement} el
 * @property {(event: string) => void} trigger
 * @property {() => void} remove
 * @property {Promise<WidgetView | undefined>} [layoutPromise]
 * @property {Promise<WidgetView | undefined>} [stylePromise]
 * @typedef {{get_model(id: string): Promise<WidgetModel>, create_view(model: WidgetModel): Promise<WidgetView>}} Manager
 */

/**
 * What JupyterLab's widget manager knows of the kernel, beyond ipywidgets' own interface; other front ends have less of
 * it or nothing.
 *
 * @typedef {{connect(slot: () => void): unknown, disconnect(slot: () => void): unknown}} Signal
 * @typedef {object} Kernel
 * @property {string} [id]
 * @property {string} [status] among others restarting, autorestarting, terminating, dead
 * @property {string} [connectionStatus] connected, connecting, disconnected
 * @property {(content: object) => Promise<{content?: {status?: string, comms?: Record<string, unknown>}} | undefined>} [requestCommInfo]
 * @typedef {{statusChanged?: Signal, connectionStatusChanged?: Signal, kernelChanged?: Signal}} Context
 * @typedef {{kernel?: (Kernel & Context) | null, context?: {sessionContext?: Context}}} KernelSource
 */

/**
 * What is known of the kernel: `quiet` for too long, connection `lost`, `gone` for good; or `live`.
 *
 * @typedef {"live" | "quiet" | "lost" | "gone"} Contact
 */

/**
 * What the person asked for in the browser.
 *
 * @typedef {object} Request
 * @property {"cancel" | "cancel_blocker"} kind
 * @property {number} at `performance.now()` of the click
 * @property {string | null} blocker the build that `cancel_blocker` is about
 * @property {number} refused how many cancels nobody could be asked for before
 * @property {boolean} sent false if there was nobody to send it to
 */

const TICK_MS = 250;
/** After this long without a callback, steps say nothing any more: the bar becomes indeterminate. */
const SILENT_S = 1;
/** After this long the age of the last callback is told. */
const TELL_SILENCE_S = 5;
/** A kernel that confirms nothing for this long after a click is busy. */
const BUSY_MS = 2000;
/** A kernel sends something every 2 s while it builds; after this long without, one asks what has become of it. */
const QUIET_S = 8;
/** A timer that is later than this was held up itself: a tab in the background, a computer that slept. */
const LATE_S = 1;
/** A kernel that answers no question for this long may be asked again. */
const ASK_AGAIN_S = 30;
/** The innermost phase can change at every callback; its name above the rows changes no faster than this. */
const ACTIVITY_MS = 500;
/** Progress is told aloud no more often than this. */
const RARELY_MS = 20_000;
/** Before the end nothing is complete. */
const MOST = 0.999;
const CLOCK_SAMPLES = 40;
/** No message is on its way for so long, as a rule; one that seems to be comes from a clock that was set anew. */
const STEP_S = 5;
const LOAD_ATTEMPTS = 3;

/** @type {Record<Status, readonly [icon: string, word: string]>} */
const STATUS = {
  pending: ["○", "Pending"],
  running: ["●", "Running"],
  cancelling: ["■", "Cancelling…"],
  succeeded: ["✓", "Succeeded"],
  cancelled: ["■", "Cancelled"],
  failed: ["✕", "Failed"],
  ended: ["–", "Ended"],
};

/** What stands for the status where the kernel is not heard of. @type {Record<Exclude<Contact, "live">, string>} */
const NO_CONTACT = { quiet: "No news", lost: "No connection", gone: "Kernel gone" };

/** @type {Record<RowStatus, string>} */
const ROW_ICON = { running: "●", done: "✓", cancelled: "■", failed: "✕", ended: "–" };

/** What a row that was still open has come to, once the build has ended. @type {Partial<Record<Status, RowStatus>>} */
const ROW_OUTCOME = { succeeded: "done", cancelled: "cancelled", failed: "failed", ended: "ended" };

// ---------------------------------------------------------------------------------------------------- text and DOM

const whole = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** Minutes and hours with colons. @param {number} seconds */
function colons(seconds) {
  const s = Math.floor(seconds);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

/** A duration that is still growing: tenths only while they mean something. @param {number} seconds */
function growing(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${(Math.floor(s * 10) / 10).toFixed(1)} s`;
  return s < 60 ? `${Math.floor(s)} s` : colons(s);
}

/** A duration that is over. @param {number} seconds */
function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 0.001) return "<1 ms";
  if (s < 0.1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  return s < 59.95 ? `${s.toFixed(1)} s` : colons(s);
}

/**
 * A time left, as exact as such a thing is known.
 *
 * @param {number} seconds
 * @returns {readonly [seconds: number, words: string]} the time that the words stand for
 */
function roughly(seconds) {
  if (seconds < 7.5) return [5, "a few seconds"];
  const to = (/** @type {number} */ unit) => Math.max(1, Math.round(seconds / unit)) * unit;
  if (seconds < 57.5) return [to(5), `about ${to(5)} s`];
  if (seconds < 15 * 60) return [to(60), `about ${to(60) / 60} min`];
  if (seconds < 87.5 * 60) return [to(300), `about ${to(300) / 60} min`];
  return [to(1800), `about ${to(1800) / 3600} h`];
}

/** How long a build should take. @param {number} seconds */
function expected(seconds) {
  if (seconds < 0.95) return "fraction of a second";
  return seconds < 100 ? `${Math.round(seconds)} s` : colons(seconds);
}

/** @param {number} fraction */
function percent(fraction) {
  return `${Math.floor(fraction * 100)} %`;
}

/** @param {number} bytes */
function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** Memory, which is never known to the byte. @param {number} bytes */
function memory(bytes) {
  return bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** @param {number} count @param {string} noun */
function plural(count, noun) {
  return `${whole.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number} n */
function steps(n) {
  return Math.abs(n) < 10_000 ? String(n) : compact.format(n);
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
  // A DOMWidgetView leaves these two behind, with some fifty listeners on models that all rows share.
  void view.layoutPromise?.then((layout) => layout?.remove());
  void view.stylePromise?.then((style) => style?.remove());
}

/** Every card has this module of its own, and all are in one page. */
const PAGE_WIDE = Math.random().toString(36).slice(2, 10);
let serial = 0;

/** An id that no other element of the page has. @param {string} what */
function unique(what) {
  return `trt-${what}-${PAGE_WIDE}-${++serial}`;
}

// ---------------------------------------------------------------------------------- what all views of a card share

/** The browser's clocks in seconds: one that only goes forward, and the time of day. */
const CLOCKS = { monotonic: () => performance.now() / 1000, wall: () => Date.now() / 1000 };

/** The kernel's clock as seen from here, how long it has been silent, and whether it is there at all. */
export class Clock {
  #time;
  /** How far the kernel's clock is behind the monotonic one here. @type {number[]} */
  #offsets = [];
  /** When the kernel was last heard of. This and all times below are of the monotonic clock: nobody sets it. */
  #heard;
  /** Seconds without a message, as far as one was awake to receive it. */
  #quiet = 0;
  #ticked;
  /** When it became known that the kernel is gone. @type {number | null} */
  #gone = null;
  /** Where the clock stands since then, and the age of the last message. @type {[now: number, age: number] | null} */
  #stopped = null;

  /** @param {typeof CLOCKS} time */
  constructor(time = CLOCKS) {
    this.#time = time;
    this.#heard = this.#ticked = time.monotonic();
  }

  /** Note a message. @param {number | null} sent when it was, by the kernel's clock */
  receive(sent) {
    this.#heard = this.#ticked = this.#time.monotonic();
    this.#quiet = 0;
    if (sent !== null) {
      const offset = this.#heard - sent;
      // A message can only be late, so the smallest difference is the truest: until the kernel's clock is set back.
      if (offset - this.#offset > STEP_S) this.#offsets = [];
      this.#offsets.push(offset);
      if (this.#offsets.length > CLOCK_SAMPLES) this.#offsets.shift();
    }
    // What was on its way when the kernel went is no sign of life.
    if (this.#gone !== null && (sent === null || sent + this.#offset > this.#gone)) this.revive();
  }

  /** Count the time that has passed; to be called several times a second while somebody looks. */
  tick() {
    const now = this.#time.monotonic();
    // Messages that came while nobody could take them are handed over after the timers.
    this.#quiet += Math.min(now - this.#ticked, LATE_S);
    this.#ticked = now;
  }

  get #offset() {
    // A kernel that doesn't tell its time may have ours.
    return this.#offsets.length > 0 ? Math.min(...this.#offsets) : this.#time.monotonic() - this.#time.wall();
  }

  /** Seconds without a message. */
  get quiet() {
    return this.#quiet;
  }

  get gone() {
    return this.#gone !== null;
  }

  /** The kernel's time; it stands still when nothing more is heard. */
  get now() {
    return this.#stopped?.[0] ?? this.#heard + this.age - this.#offset;
  }

  /** Seconds since the last message; they, too, stand still then. */
  get age() {
    return this.#stopped?.[1] ?? Math.min(this.#time.monotonic() - this.#heard, QUIET_S);
  }

  /** The kernel is gone. */
  stop() {
    if (this.#gone !== null) return;
    this.#stopped = [this.now, this.age];
    this.#gone = this.#time.monotonic();
  }

  /** The kernel is there after all. */
  revive() {
    this.#gone = this.#stopped = null;
  }
}

/**
 * How far a build is and how long it will still take, between the kernel's messages, too: its last word counts, and
 * from there on time passes here.
 */
export class Outlook {
  #shown = 0;
  /** What was said last. @type {ReturnType<typeof roughly>} */
  #told = [Infinity, ""];

  /**
   * Say what to show; the progress is never less than before, nor complete.
   *
   * @param {Header} header
   * @param {number} age seconds since it came, by a clock that nobody sets: what is shown once stays
   * @returns {{progress: number | null, left: string | null}}
   */
  read(header, age) {
    const said = number(header.progress);
    if (said === null) return { progress: null, left: null };
    const eta = header.exceeded ? null : number(header.eta_s);
    let progress = said;
    let left = null;
    if (eta !== null && eta > 0) {
      // As fast as the clock at first, but without another message it doesn't reach the end.
      const rest = eta / (eta + age);
      progress = 1 - (1 - said) * rest;
      left = this.#tell(eta * rest);
    }
    this.#shown = Math.min(Math.max(progress, this.#shown), MOST);
    return { progress: this.#shown, left };
  }

  /** @param {number} seconds */
  #tell(seconds) {
    const next = roughly(seconds);
    // Between two roundings it would go to and fro.
    if (next[0] <= this.#told[0] || seconds > 0.25 * this.#told[0] + 0.75 * next[0]) this.#told = next;
    return this.#told[1];
  }
}

/** What the front end itself knows of the kernel. */
class KernelWatch {
  #source;
  #onGone;
  #onChange;
  #id;
  /** What is undone at the end. @type {(() => void)[]} */
  #undo = [];
  /** When the kernel was asked last. */
  #asked = -Infinity;

  /** @param {KernelSource} source @param {() => void} onGone @param {() => void} onChange */
  constructor(source, onGone, onChange) {
    this.#source = source;
    this.#onGone = onGone;
    this.#onChange = onChange;
    this.#id = this.#kernel?.id;
    const context = source.context?.sessionContext ?? this.#kernel;
    const check = () => this.check();
    for (const signal of [context?.statusChanged, context?.connectionStatusChanged, context?.kernelChanged]) {
      signal?.connect(check);
      this.#undo.push(() => void signal?.disconnect(check));
    }
  }

  dispose() {
    for (const undo of this.#undo.splice(0)) undo();
  }

  get #kernel() {
    try {
      return this.#source.kernel ?? null;
    } catch {
      // JupyterLab's manager throws here once it is disposed of.
      return null;
    }
  }

  /** Whether messages can come at all. */
  get connected() {
    const connection = this.#kernel?.connectionStatus;
    return connection === undefined || connection === "connected";
  }

  /** Look at what is known now. */
  check() {
    const kernel = this.#kernel;
    const other = this.#id !== undefined && kernel?.id !== this.#id;
    this.#id ??= kernel?.id;
    const ending = ["restarting", "autorestarting", "terminating", "dead"].includes(kernel?.status ?? "");
    if (other || ending) this.#onGone();
    else this.#onChange();
  }

  /** Ask the kernel itself whether it still has a comm: one that was restarted elsewhere has not. @param {string} comm */
  async ask(comm) {
    const now = performance.now() / 1000;
    const kernel = this.#kernel;
    if (!kernel?.requestCommInfo || !this.connected || now - this.#asked < ASK_AGAIN_S) return;
    this.#asked = now;
    try {
      const content = (await kernel.requestCommInfo({ target_name: "jupyter.widget" }))?.content;
      if (content?.status === "ok" && content.comms && !(comm in content.comms)) this.#onGone();
    } catch {
      // Without an answer it stays as it is: nothing heard.
    }
  }
}

/** One card's connection to the kernel; its views come and go. */
class Session {
  clock = new Clock();
  outlook = new Outlook();
  /** @type {Request | null} */
  request = null;
  /** The views' way to be drawn again. @type {Set<() => void>} */
  listeners = new Set();
  /** @type {AnyModel<CardState>} */
  #model;
  /** @type {WidgetModel | null} */
  #channel = null;
  #kernel;
  #onLive = () => this.#checkLive();

  /** @param {AnyModel<CardState>} model @param {AbortSignal} signal */
  constructor(model, signal) {
    this.#model = model;
    // The first state may come from a saved notebook, or be as old as the last heartbeat: later ones correct it.
    this.clock.receive(number(this.header.now));
    model.on("change:header", () => this.#onHeader());
    model.on("change:cancel_channel", () => void this.#connect());
    const source = /** @type {KernelSource} */ (/** @type {unknown} */ (model.widget_manager));
    const onGone = () => {
      this.clock.stop();
      this.changed();
    };
    this.#kernel = new KernelWatch(source, onGone, () => this.changed());
    signal.addEventListener("abort", () => {
      this.#channel?.off("comm_live_update", this.#onLive);
      this.#kernel.dispose();
    });
    void this.#connect();
  }

  get header() {
    return this.#model.get("header") ?? {};
  }

  get status() {
    const { status } = this.header;
    return status && status in STATUS ? status : "pending";
  }

  get final() {
    return this.status in ROW_OUTCOME;
  }

  /** What is known of the kernel. @returns {Contact} */
  get contact() {
    const { header, status, clock } = this;
    if (this.final) return "live";
    if (clock.gone) return "gone";
    if (!this.#kernel.connected) return "lost";
    const beats = header.beats ?? status !== "pending";
    return beats && clock.quiet > QUIET_S ? "quiet" : "live";
  }

  /** Let time pass. */
  tick() {
    this.clock.tick();
    const comm = this.#channel?.model_id;
    if (comm && this.contact === "quiet") void this.#kernel.ask(comm);
  }

  /** Whether a click waits for an answer that should have been there. */
  get busy() {
    const { request } = this;
    if (request?.kind !== "cancel") return false;
    return !request.sent || performance.now() - request.at > BUSY_MS;
  }

  /** Send what was clicked. @param {Request["kind"]} kind */
  ask(kind) {
    const blocker = this.header.blocked_by ?? null;
    const sent = this.#channel !== null && this.contact !== "gone";
    const refused = this.header.cancels_refused ?? 0;
    this.request = { kind, at: performance.now(), blocker, refused, sent };
    this.#channel?.send({ kind });
    this.changed();
  }

  changed() {
    for (const listener of this.listeners) listener();
  }

  #onHeader() {
    const { request } = this;
    if (request) {
      const answered =
        request.kind === "cancel"
          ? (this.status !== "pending" && this.status !== "running") ||
            (this.header.cancels_refused ?? 0) !== request.refused
          : (this.header.blocked_by ?? null) !== request.blocker;
      if (answered) this.request = null;
    }
    this.clock.receive(number(this.header.now));
    this.changed();
  }

  async #connect() {
    const reference = this.#model.get("cancel_channel");
    /** @type {WidgetModel | null} */
    let channel = null;
    try {
      channel = reference ? await manager(this.#model).get_model(modelId(reference)) : null;
    } catch {
      // Without it a click is answered by what else can be done.
    }
    if (reference !== this.#model.get("cancel_channel")) return;
    this.#channel?.off("comm_live_update", this.#onLive);
    this.#channel = channel;
    channel?.on("comm_live_update", this.#onLive);
    this.#checkLive();
    // A click that came before the connection.
    if (channel && this.request && !this.request.sent) this.ask(this.request.kind);
  }

  #checkLive() {
    if (this.#channel?.comm_live === false) this.clock.stop();
    else this.clock.revive();
    this.#kernel.check();
  }
}

/** @param {AnyModel<CardState>} model @returns {Manager} */
function manager(model) {
  return /** @type {Manager} */ (/** @type {unknown} */ (model.widget_manager));
}

/** Whether views of other widgets can be shown in the card; marimo has none to give. @param {Manager} widgets */
function nests(widgets) {
  return typeof widgets.create_view === "function";
}

// ------------------------------------------------------------------------------------------------------------- rows

/** One row: a bar's model and what is drawn of it. */
class Row {
  el = make("li", "trt-row");
  toggle = make("button", "trt-toggle");
  /** The progressbar; ipywidgets' own bar is drawn in it. */
  bar = make("div", "trt-bar");
  /** @type {WidgetModel} */
  model;
  gone = false;
  /** @type {WidgetView | null} */
  #view = null;
  #icon = decoration("trt-icon");
  #label = foreign("trt-label");
  #count = make("span", "trt-count");
  #folded = make("span", "trt-folded");
  #foldedCount = make("span");
  #foldedWord = make("span", "trt-folded-word");
  #steps = decoration("trt-steps");
  #time = make("span", "trt-time");
  #onChange;

  /** @param {WidgetModel} model @param {() => void} onChange @param {(row: Row) => void} onToggle */
  constructor(model, onChange, onToggle) {
    this.model = model;
    this.#onChange = onChange;
    this.toggle.type = "button";
    this.toggle.addEventListener("click", () => onToggle(this));
    this.#label.id = unique("label");
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-labelledby", this.#label.id);
    this.bar.setAttribute("aria-valuemin", "0");
    this.#folded.append(this.#foldedCount, this.#foldedWord);
    const what = make("div", "trt-what");
    what.append(this.toggle, this.#icon, this.#label, this.#count, this.#folded);
    this.el.append(what, this.bar, this.#steps, this.#time);
    model.on("change:info", onChange);
  }

  /** @returns {Info} */
  get info() {
    return this.model.get("info") ?? {};
  }

  get depth() {
    return Math.max(0, number(this.info.depth) ?? 0);
  }

  get path() {
    return this.info.path ?? this.info.label ?? "";
  }

  /** The status to show: what was open when the build ended has ended with it. @param {Status} outcome @returns {RowStatus} */
  status(outcome) {
    const { status } = this.info;
    if (!status || !(status in ROW_ICON)) return ROW_OUTCOME[outcome] ?? "running";
    return status === "running" ? (ROW_OUTCOME[outcome] ?? status) : status;
  }

  /** Put the bar's own view in. @param {Manager} widgets */
  async mount(widgets) {
    const view = await widgets.create_view(this.model);
    if (this.gone) {
      view.remove();
      return;
    }
    this.#view = view;
    view.el.setAttribute("aria-hidden", "true");
    this.bar.append(view.el);
    // A DOMWidgetView applies its layout and style once it is displayed. Lumino would say so from Widget.attach, but
    // a widget attached that way throws when it is disposed of after its cell has left the page.
    view.trigger("displayed");
  }

  dispose() {
    this.gone = true;
    this.model.off("change:info", this.#onChange);
    if (this.#view) removeView(this.#view);
    this.el.remove();
  }

  /**
   * @param {object} state
   * @param {RowStatus} state.status
   * @param {boolean} state.silent
   * @param {boolean} state.parent whether rows below belong to it
   * @param {boolean} state.collapsed
   * @param {boolean} state.hidden
   * @param {number} state.folded paths that it stands for
   * @param {number} state.now the kernel's time, at most that of the build's end
   */
  draw({ status, silent, parent, collapsed, hidden, folded, now }) {
    const { info } = this;
    const label = info.label ?? "";
    const running = status === "running";
    setShown(this.el, !hidden && label !== "");
    setAttribute(this.el, "data-path", this.path);
    setAttribute(this.el, "data-status", status);
    setAttribute(this.el, "aria-level", String(this.depth + 1));
    const depth = String(this.depth);
    if (this.el.style.getPropertyValue("--trt-depth") !== depth) this.el.style.setProperty("--trt-depth", depth);

    setAttribute(this.toggle, "data-leaf", parent ? null : "");
    this.toggle.disabled = !parent;
    setAttribute(this.toggle, "aria-hidden", parent ? null : "true");
    setAttribute(this.toggle, "aria-expanded", parent ? String(!collapsed) : null);
    setAttribute(this.toggle, "aria-label", parent ? `Phases in ${label}` : null);

    setText(this.#icon, ROW_ICON[status]);
    setText(this.#label, label);
    setAttribute(this.#label, "title", this.path);
    const count = number(info.count) ?? 1;
    setText(this.#count, count > 1 ? `×${whole.format(count)}` : "");
    setAttribute(this.#count, "title", count > 1 ? `ran ${plural(count, "time")}` : null);
    setShown(this.#folded, folded > 0);
    setText(this.#foldedCount, `+${whole.format(folded)}`);
    setText(this.#foldedWord, folded === 1 ? " phase" : " phases");
    setAttribute(this.#folded, "title", folded > 0 ? `stands for ${plural(folded, "more phase")} below it` : null);

    const total = number(info.total) ?? 0;
    const step = Math.max(0, number(info.step) ?? 0);
    const known = total >= 1;
    const progress = known ? `${steps(step)}/${steps(total)}` : step > 0 ? steps(step) : "";
    setText(this.#steps, running ? progress : status);
    setAttribute(this.#steps, "title", known && status !== "done" ? `step ${whole.format(step)} of ${whole.format(total)}` : null);

    const indeterminate = running && (!known || silent);
    setAttribute(this.bar, "data-indeterminate", indeterminate ? "" : null);
    setAttribute(this.bar, "data-unknown", known || status === "done" ? null : "");
    setAttribute(this.bar, "aria-valuemax", String(known ? total : 1));
    // Without a value a progressbar is indeterminate to a screen reader, too.
    const value = status === "done" ? (known ? total : 1) : known ? Math.min(step, total) : null;
    setAttribute(this.bar, "aria-valuenow", value === null ? null : String(value));
    const at = known ? `step ${whole.format(step)} of ${whole.format(total)}` : "";
    setAttribute(this.bar, "aria-valuetext", status === "done" ? "done" : at ? `${status}, ${at}` : status);

    const since = number(info.since);
    const seconds = (number(info.elapsed) ?? 0) + (since === null ? 0 : Math.max(0, now - since));
    setText(this.#time, running ? growing(seconds) : duration(seconds));
  }
}

// --------------------------------------------------------------------------------------------------------- messages

/** TensorRT's warnings and errors and what the build process printed, folded; filled only when somebody looks. */
class Log {
  el = make("details", "trt-log");
  #summary = make("summary");
  #list = make("ul", "trt-log-list");
  #heading = make("div", "trt-printed-heading");
  #printed = make("pre", "trt-printed");
  #text = "";
  /** @type {Message[]} */
  #messages = [];
  /** What is drawn. @type {string[]} */
  #drawn = [];
  #started = 0;

  constructor() {
    this.el.hidden = true;
    // Scrolls, so the keyboard must be able to reach it.
    this.#list.tabIndex = 0;
    this.#list.setAttribute("aria-label", "Messages");
    this.#heading.id = unique("printed");
    setText(this.#heading, "Printed by the build process");
    this.#printed.tabIndex = 0;
    this.#printed.setAttribute("role", "group");
    this.#printed.setAttribute("aria-labelledby", this.#heading.id);
    this.el.append(this.#summary, this.#list, this.#heading, this.#printed);
    this.el.addEventListener("toggle", () => this.#fill());
  }

  /** @param {Message[]} messages @param {string} printed @param {Header} header */
  draw(messages, printed, header) {
    const errors = number(header.errors) ?? messages.filter((m) => m.severity !== "warning").length;
    const warnings = number(header.warnings) ?? messages.length - errors;
    const parts = [];
    if (warnings > 0) parts.push(plural(warnings, "warning"));
    if (errors > 0) parts.push(plural(errors, "error"));
    setShown(this.#list, parts.length > 0);
    setShown(this.#heading, printed !== "");
    setShown(this.#printed, printed !== "");
    setShown(this.el, parts.length > 0 || printed !== "");
    setAttribute(this.el, "data-errors", errors > 0 ? "" : null);
    const latest = messages.length < warnings + errors ? ` (the latest ${messages.length} are kept here)` : "";
    const said = parts.length > 0 ? `${parts.join(", ")} from TensorRT${latest}` : "";
    const lines = printed === "" ? "" : `${plural(printed.split("\n").length, "line")} printed`;
    setText(this.#summary, [said, lines].filter(Boolean).join(", "));
    this.#started = number(header.started) ?? 0;
    if (messages !== this.#messages || printed !== this.#text) {
      this.#messages = messages;
      this.#text = printed;
      this.#fill();
    }
  }

  #fill() {
    if (!this.el.open) return;
    const box = this.#printed;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    if (box.textContent !== this.#text) {
      box.textContent = this.#text;
      // The newest line is what one waits for, unless one reads elsewhere.
      if (atEnd) box.scrollTop = box.scrollHeight;
    }
    const keys = this.#messages.map((m) => JSON.stringify([m.time, m.severity, m.message]));
    // The list is a window that moves on: drop what has left it, keep what stays (someone may be reading), append.
    const first = this.#drawn.indexOf(keys[0] ?? "");
    const kept = first < 0 ? [] : this.#drawn.slice(first);
    const moved = first >= 0 && kept.length <= keys.length && kept.every((key, i) => key === keys[i]);
    const left = moved ? first : this.#drawn.length;
    for (let i = 0; i < left; i++) this.#list.firstChild?.remove();
    this.#list.append(...this.#messages.slice(moved ? kept.length : 0).map((message) => this.#entry(message)));
    this.#drawn = keys;
  }

  /** @param {Message} message */
  #entry(message) {
    const severity = (message.severity ?? "message").replaceAll("_", " ");
    const item = make("li", "trt-log-item");
    item.dataset["severity"] = severity;
    const tag = make("span", "trt-log-severity");
    tag.textContent = severity;
    const text = make("span", "trt-log-text");
    text.dir = "auto";
    text.textContent = message.message ?? "";
    item.append(tag, text);
    const time = number(message.time);
    if (time !== null) {
      // Since the start of the build, whether it comes as that or as the kernel's time.
      const seconds = time > 1e9 ? time - this.#started : time;
      const at = make("span", "trt-log-time");
      if (seconds < 1e9) at.textContent = `+${duration(seconds)}`;
      item.append(at);
    }
    return item;
  }
}

// --------------------------------------------------------------------------------------------------------- progress

/** How far the whole build is, and how long it will still take. */
class Overall {
  el = make("div", "trt-overall");
  #bar = make("div", "trt-whole");
  #fill = make("div", "trt-whole-fill");
  #percent = make("span", "trt-percent");
  #left = make("span", "trt-left");
  #basis = foreign("trt-basis");

  constructor() {
    this.el.hidden = true;
    const bar = this.#bar;
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", "Whole build");
    bar.setAttribute("aria-valuemin", "0");
    bar.setAttribute("aria-valuemax", "100");
    bar.append(this.#fill);
    this.#basis.id = unique("basis");
    const words = make("div", "trt-outlook");
    words.append(this.#percent, this.#left, this.#basis);
    this.el.append(bar, words);
  }

  /**
   * @param {object} state
   * @param {number | null} state.progress
   * @param {string} state.left
   * @param {boolean} state.known whether `left` is a time
   * @param {string} state.basis
   * @param {boolean} state.moving
   */
  draw({ progress, left, known, basis, moving }) {
    const bar = this.#bar;
    const done = progress === null ? "" : percent(progress);
    setAttribute(bar, "data-indeterminate", progress === null && moving ? "" : null);
    setAttribute(bar, "aria-valuenow", progress === null ? null : String(Math.floor(progress * 100)));
    setAttribute(bar, "aria-valuetext", [done, left].filter(Boolean).join(", ") || null);
    setAttribute(bar, "aria-describedby", basis ? this.#basis.id : null);
    const width = `${((progress ?? 0) * 100).toFixed(1)}%`;
    if (this.#fill.style.width !== width) this.#fill.style.width = width;
    setText(this.#percent, done);
    setText(this.#left, left);
    setAttribute(this.#left, "data-known", known ? "" : null);
    setText(this.#basis, basis);
    setAttribute(this.#basis, "title", basis || null);
  }
}

/** The phases that took longest, each with its share of the build. */
class Slowest {
  el = make("div", "trt-slowest");
  #list = make("ol", "trt-slow-list");
  #drawn = "";

  constructor() {
    this.el.hidden = true;
    const heading = make("div", "trt-part");
    heading.id = unique("slowest");
    setText(heading, "Slowest phases");
    heading.title = "The time in a phase itself, without the phases below it";
    this.#list.setAttribute("role", "list");
    this.#list.setAttribute("aria-labelledby", heading.id);
    this.el.append(heading, this.#list);
  }

  /** @param {Slow[]} slowest */
  draw(slowest) {
    const drawn = JSON.stringify(slowest);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#list.replaceChildren(...slowest.map((slow) => this.#item(slow)));
    setShown(this.el, slowest.length > 0);
  }

  /** @param {Slow} slow */
  #item({ label = "", path = label, self_s, share }) {
    const item = make("li", "trt-slow");
    const name = foreign("trt-slow-label");
    name.textContent = label;
    name.title = path;
    const bar = decoration("trt-slow-bar");
    const fill = make("span");
    const part = Math.min(Math.max(number(share) ?? 0, 0), 1);
    fill.style.width = `${(part * 100).toFixed(1)}%`;
    bar.append(fill);
    const time = make("span", "trt-slow-time");
    const seconds = number(self_s);
    time.textContent = seconds === null ? "" : duration(seconds);
    const portion = make("span", "trt-slow-share");
    // Rounded to the nearest: several of them together are no more than the whole by much.
    portion.textContent = part > 0 && part < 0.005 ? "<1 %" : `${Math.round(part * 100)} %`;
    item.append(name, bar, time, portion);
    return item;
  }
}

// --------------------------------------------------------------------------------------------------------- timeline

/** The timeline, a widget of its own: there only while somebody looks. */
class Timeline {
  el = make("details", "trt-timeline-fold");
  #host = make("div", "trt-timeline-host");
  #widgets;
  /** @type {string | null} */
  #reference = null;
  /** @type {WidgetView | null} */
  #view = null;
  /** Counts the openings: a view that comes too late is not shown. */
  #opening = 0;

  /** @param {Manager} widgets */
  constructor(widgets) {
    this.#widgets = widgets;
    this.el.hidden = true;
    const summary = make("summary");
    setText(summary, "Timeline");
    this.el.append(summary, this.#host);
    this.el.addEventListener("toggle", () => void this.#show());
  }

  /** @param {string | null} reference */
  draw(reference) {
    setShown(this.el, reference !== null);
    if (reference === this.#reference) return;
    this.#reference = reference;
    this.#clear();
    void this.#show();
  }

  dispose() {
    this.#clear();
    this.el.remove();
  }

  async #show() {
    const reference = this.#reference;
    if (!this.el.open || reference === null) {
      this.#clear();
      return;
    }
    if (this.#view) return;
    const opening = ++this.#opening;
    if (!nests(this.#widgets)) {
      this.#tell("This front end cannot show the timeline in the card; w.timeline in a cell shows it on its own.");
      return;
    }
    try {
      const view = await this.#widgets.create_view(await this.#widgets.get_model(modelId(reference)));
      if (opening !== this.#opening) {
        removeView(view);
        return;
      }
      this.#view = view;
      this.#host.replaceChildren(view.el);
      // As for a row's bar.
      view.trigger("displayed");
    } catch {
      if (opening === this.#opening) this.#tell("The kernel no longer has the timeline.");
    }
  }

  /** Say why it is not here. @param {string} text */
  #tell(text) {
    const missing = make("div", "trt-missing");
    setText(missing, text);
    this.#host.replaceChildren(missing);
  }

  #clear() {
    this.#opening++;
    if (this.#view) removeView(this.#view);
    this.#view = null;
    this.#host.replaceChildren();
  }
}

// ------------------------------------------------------------------------------------------------------------- card

/** A sentence with names in it: strings are ours, objects hold foreign text. @typedef {(string | {name: string})[]} Sentence */

/** One view of a card. */
class Card {
  #root = make("section", "trt-build");
  #icon = decoration("trt-status-icon");
  #word = make("span", "trt-status");
  #name = foreign("trt-name");
  #elapsed = make("span", "trt-elapsed");
  #cancel = make("button", "trt-cancel");
  #meta = make("div", "trt-meta");
  #overall = new Overall();
  #note = make("div", "trt-note");
  #noteText = make("span", "trt-note-text");
  #cancelBlocker = make("button", "trt-cancel-blocker");
  #notes = make("div", "trt-notes");
  #explanation = make("div", "trt-explanation");
  #slowest = new Slowest();
  #tree = make("details", "trt-tree");
  #treeSummary = make("summary");
  #list = make("ul", "trt-rows");
  #more = make("div", "trt-more");
  #replaced = make("div", "trt-replaced");
  #timeline;
  #log = new Log();
  #live = make("div", "trt-live");
  /** Hides what a saved notebook shows of the build in place of this card. */
  #style = make("style");

  #model;
  #session;
  #widgets;
  /** By model id. @type {Map<string, Row>} */
  #rows = new Map();
  /** Model ids in the order of the rows. @type {string[]} */
  #order = [];
  /** @type {Set<string>} */
  #loading = new Set();
  /** Attempts to load a row that is not there. @type {Map<string, number>} */
  #missing = new Map();
  /** Paths whose rows are collapsed here. @type {Set<string>} */
  #collapsed = new Set();
  #noteDrawn = "";
  #explained = "";
  #said = "";
  /** When something was said aloud. */
  #saidAt = 0;
  /** Quarters of the build that are done, and whether it is late: what was said, or need not be said. */
  #milestone = "";
  /** Whether the person has folded or unfolded the phases. */
  #treeChosen = false;
  #activity = { label: "", at: 0 };
  #frame = 0;
  #timer = 0;
  #visible = true;
  #disposed = false;
  /** @type {IntersectionObserver | null} */
  #observer = null;
  #schedule = () => {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  };
  #onRows = () => this.#syncRows();
  #onSession = () => {
    if (this.#missing.size > 0) this.#syncRows();
    this.#schedule();
  };
  #onVisibility = () => this.#schedule();
  #onTick = () => {
    this.#session.tick();
    this.#draw();
  };

  /** @param {AnyModel<CardState>} model @param {Session} session @param {HTMLElement} host */
  constructor(model, session, host) {
    this.#model = model;
    this.#session = session;
    this.#widgets = manager(model);
    this.#timeline = new Timeline(this.#widgets);
    this.#build();
    host.append(this.#root);
    session.listeners.add(this.#onSession);
    model.on("change:rows", this.#onRows);
    model.on("change:timeline", this.#schedule);
    model.on("change:messages", this.#schedule);
    model.on("change:printed", this.#schedule);
    document.addEventListener("visibilitychange", this.#onVisibility);
    if (typeof IntersectionObserver !== "undefined") {
      this.#observer = new IntersectionObserver((entries) => {
        this.#visible = entries.at(-1)?.isIntersecting ?? true;
        this.#schedule();
      });
      this.#observer.observe(this.#root);
    }
    this.#syncRows();
    this.#draw();
  }

  dispose() {
    if (this.#disposed) return;
    this.#disposed = true;
    cancelAnimationFrame(this.#frame);
    clearInterval(this.#timer);
    this.#observer?.disconnect();
    document.removeEventListener("visibilitychange", this.#onVisibility);
    this.#session.listeners.delete(this.#onSession);
    this.#model.off("change:rows", this.#onRows);
    this.#model.off("change:timeline", this.#schedule);
    this.#model.off("change:messages", this.#schedule);
    this.#model.off("change:printed", this.#schedule);
    for (const row of this.#rows.values()) row.dispose();
    this.#rows.clear();
    this.#timeline.dispose();
    this.#root.remove();
  }

  #build() {
    const root = this.#root;
    root.setAttribute("role", "group");
    // Where the focus goes when the button that has it leaves.
    root.tabIndex = -1;
    const pill = make("span", "trt-pill");
    pill.append(this.#icon, this.#word);
    this.#cancel.type = "button";
    this.#cancel.addEventListener("click", () => this.#onCancel());
    this.#cancelBlocker.type = "button";
    this.#cancelBlocker.addEventListener("click", () => this.#onCancelBlocker());
    const head = make("div", "trt-head");
    head.append(pill, this.#name, this.#elapsed, this.#cancel);
    this.#note.append(this.#noteText, this.#cancelBlocker);
    this.#explanation.tabIndex = 0;
    this.#explanation.setAttribute("aria-label", "Explanation");
    this.#explanation.setAttribute("role", "group");
    // Safari takes the role away with the bullets.
    this.#list.setAttribute("role", "list");
    this.#list.setAttribute("aria-label", "Phases");
    setText(this.#replaced, "The cell was run again: this view goes when its build has ended.");
    this.#live.setAttribute("role", "status");
    this.#live.setAttribute("aria-live", "polite");
    const hidden = [this.#notes, this.#explanation, this.#tree, this.#more, this.#replaced, this.#cancelBlocker];
    for (const part of hidden) part.hidden = true;
    this.#tree.open = true;
    this.#treeSummary.addEventListener("click", () => {
      this.#treeChosen = true;
    });
    this.#tree.append(this.#treeSummary, this.#list, this.#more);
    root.append(head, this.#meta, this.#overall.el, this.#note, this.#notes, this.#explanation, this.#slowest.el);
    root.append(this.#tree, this.#timeline.el, this.#log.el, this.#replaced, this.#live, this.#style);
  }

  // ------------------------------------------------------------------------------------------- what a person does

  get #canCancel() {
    const { status, header, contact } = this.#session;
    return contact !== "gone" && (status === "pending" || status === "running") && header.can_cancel !== false;
  }

  #onCancel() {
    const { request } = this.#session;
    // What could not be sent may be tried again.
    if (this.#canCancel && !(request?.kind === "cancel" && request.sent)) this.#session.ask("cancel");
    this.#draw();
  }

  #onCancelBlocker() {
    const { header, request } = this.#session;
    if (header.blocked_by && header.can_cancel_blocker && !request?.sent) this.#session.ask("cancel_blocker");
    this.#draw();
  }

  /** @param {Row} row */
  #onToggle(row) {
    if (!this.#collapsed.delete(row.path)) this.#collapsed.add(row.path);
    this.#draw();
  }

  // -------------------------------------------------------------------------------------------------- rows of bars

  /** Bring the rows in line with the trait; rows that stay keep their elements. */
  #syncRows() {
    if (this.#disposed) return;
    this.#order = (this.#model.get("rows") ?? []).map(modelId);
    const wanted = new Set(this.#order);
    for (const [id, row] of this.#rows) {
      if (wanted.has(id)) continue;
      row.dispose();
      this.#rows.delete(id);
    }
    for (const id of this.#missing.keys()) if (!wanted.has(id)) this.#missing.delete(id);
    for (const id of wanted) if (!this.#rows.has(id) && !this.#loading.has(id)) void this.#load(id);
    this.#place();
    this.#schedule();
  }

  /** @param {string} id */
  async #load(id) {
    const attempts = this.#missing.get(id) ?? 0;
    if (attempts >= LOAD_ATTEMPTS) return;
    this.#loading.add(id);
    /** @type {WidgetModel} */
    let model;
    try {
      model = await this.#widgets.get_model(id);
    } catch {
      // The card does without this row; the next sign of life tries again.
      if (this.#order.includes(id)) this.#missing.set(id, attempts + 1);
      return;
    } finally {
      this.#loading.delete(id);
    }
    if (this.#disposed || this.#rows.has(id) || !this.#order.includes(id)) return;
    this.#missing.delete(id);
    const row = new Row(model, this.#schedule, (clicked) => this.#onToggle(clicked));
    this.#rows.set(id, row);
    this.#place();
    this.#schedule();
    if (nests(this.#widgets)) await row.mount(this.#widgets);
  }

  #place() {
    const focused = document.activeElement;
    let next = this.#list.firstElementChild;
    for (const id of this.#order) {
      const element = this.#rows.get(id)?.el;
      if (!element) continue;
      if (element === next) next = next.nextElementSibling;
      else this.#list.insertBefore(element, next);
    }
    // An element that moves loses the focus.
    if (focused instanceof HTMLElement && focused !== document.activeElement && this.#list.contains(focused)) focused.focus();
  }

  // ------------------------------------------------------------------------------------------------------ drawing

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#disposed) return;
    const { header, status, final, clock, contact } = this.#session;
    const ended = number(header.ended);
    const now = final && ended !== null ? ended : clock.now;
    const started = number(header.started);
    const name = header.name ?? "";
    const { request } = this.#session;
    // The click is answered here and now; the kernel confirms it later.
    const shown = request?.kind === "cancel" && request.sent && !final ? "cancelling" : status;
    const live = contact === "live";

    const [icon, word] = STATUS[shown];
    setAttribute(this.#root, "data-status", status);
    setAttribute(this.#root, "data-shown", shown);
    setAttribute(this.#root, "data-lost", live ? null : contact);
    setAttribute(this.#root, "aria-label", `TensorRT build of ${name || "a network"}`);
    setText(this.#icon, live ? icon : contact === "gone" ? "–" : "?");
    setText(this.#word, live ? word : NO_CONTACT[contact]);
    setText(this.#name, name);
    setAttribute(this.#name, "title", name);
    const seconds = started === null ? null : now - started;
    setText(this.#elapsed, seconds === null ? "" : final ? duration(seconds) : growing(seconds));
    setText(this.#meta, [header.backend, header.device, header.where].filter(Boolean).join(" · "));

    this.#drawCancel();
    this.#hideSaved();
    // What was open when the kernel went has ended with it, and nothing more is known of it.
    const running = this.#drawRows(now, contact === "gone" ? "ended" : status);
    const outlook = this.#drawOverall(shown);
    const note = this.#sentence(now, running);
    this.#drawNote(note.kind, note.sentence);
    this.#drawNotes();
    this.#drawExplanation();
    // A failure has an explanation instead.
    this.#slowest.draw(final && status !== "failed" ? (header.slowest ?? []) : []);
    this.#drawTree();
    this.#timeline.draw(this.#order.length > 0 ? (this.#model.get("timeline") ?? null) : null);
    setShown(this.#replaced, header.replaced === true);
    this.#log.draw(this.#model.get("messages") ?? [], this.#model.get("printed") ?? "", header);
    if (!this.#announce(shown, contact, note.sentence)) this.#announceProgress(outlook);

    const ticking = (!final || this.#session.request !== null) && this.#visible && !document.hidden;
    if (ticking && this.#timer === 0) this.#timer = setInterval(this.#onTick, TICK_MS);
    else if (!ticking && this.#timer !== 0) {
      clearInterval(this.#timer);
      this.#timer = 0;
    }
  }

  #drawCancel() {
    const { status, header, final, contact, request } = this.#session;
    const gone = contact === "gone";
    const asked = status === "cancelling" || (request?.kind === "cancel" && request.sent);
    const shown = (asked || gone || this.#canCancel) && !final;
    if (!shown && document.activeElement === this.#cancel) this.#root.focus({ preventScroll: true });
    setShown(this.#cancel, shown);
    setText(this.#cancel, asked && !gone ? "Cancelling…" : "Cancel");
    // Not `disabled`: that would take the focus away.
    setAttribute(this.#cancel, "aria-disabled", String(asked || gone));
    setAttribute(this.#cancel, "title", gone ? "The kernel has gone: there is nothing to cancel" : howItStops(header));

    const blocker = status === "pending" && header.can_cancel_blocker && !gone ? header.blocked_by : null;
    const askedBlocker = request?.kind === "cancel_blocker";
    if (!blocker && document.activeElement === this.#cancelBlocker) this.#root.focus({ preventScroll: true });
    setShown(this.#cancelBlocker, Boolean(blocker));
    if (blocker) {
      this.#fill(this.#cancelBlocker, askedBlocker ? ["Cancelling ", { name: blocker }, "…"] : ["Cancel ", { name: blocker }]);
      setAttribute(this.#cancelBlocker, "title", `Cancel ${blocker}`);
      setAttribute(this.#cancelBlocker, "aria-disabled", String(askedBlocker));
    }
  }

  /** Draw the rows; return the innermost one that runs. @param {number} now @param {Status} status @returns {Row | null} */
  #drawRows(now, status) {
    const rows = this.#order.flatMap((id) => this.#rows.get(id) ?? []);
    const statuses = rows.map((row) => row.status(status));
    const lastCallback = number(this.#session.header.last_callback) ?? -Infinity;

    // A phase was last heard of when anything below it was, so from the last row up.
    /** @type {number[]} */
    const touched = [];
    /** The latest callback of the rows after the present one that are not yet counted, by depth. @type {number[]} */
    const below = [];
    for (let i = rows.length - 1; i >= 0; i--) {
      const { depth, info } = /** @type {Row} */ (rows[i]);
      // What runs below a folded row has no row of its own; the header knows of its callbacks.
      const hidden = statuses[i] === "running" && (info.folded ?? 0) > 0 ? lastCallback : -Infinity;
      const own = Math.max(number(info.touched) ?? -Infinity, hidden);
      const latest = below.splice(depth + 1).reduce((a, b) => Math.max(a, b), own);
      touched[i] = latest;
      below[depth] = Math.max(below[depth] ?? -Infinity, latest);
    }

    /** @type {Row | null} */
    let innermost = null;
    /** Rows above the present one: [depth, path is collapsed]. @type {[number, boolean][]} */
    const above = [];
    rows.forEach((row, i) => {
      const { depth } = row;
      while (above.length > 0 && (above.at(-1)?.[0] ?? 0) >= depth) above.pop();
      const hidden = above.some(([, collapsed]) => collapsed);
      const parent = (rows[i + 1]?.depth ?? 0) > depth;
      const collapsed = parent && this.#collapsed.has(row.path);
      let folded = number(row.info.folded) ?? 0;
      if (collapsed) {
        for (let j = i + 1; j < rows.length && /** @type {Row} */ (rows[j]).depth > depth; j++) {
          folded += 1 + (number(rows[j]?.info.folded) ?? 0);
        }
      }
      above.push([depth, collapsed]);
      const own = /** @type {RowStatus} */ (statuses[i]);
      if (own === "running" && (innermost === null || depth >= innermost.depth)) innermost = row;
      const silent = own === "running" && now - /** @type {number} */ (touched[i]) > SILENT_S;
      row.draw({ status: own, silent, parent, collapsed, hidden, folded, now });
    });
    return innermost;
  }

  /** Draw how far it is. @param {Status} shown @returns {{progress: number | null, left: string}} */
  #drawOverall(shown) {
    const { header, status, contact, clock, outlook } = this.#session;
    const active = status === "running" || status === "cancelling";
    const { progress, left } = active ? outlook.read(header, clock.age) : { progress: null, left: null };
    const lost = contact !== "live";
    setShown(this.#overall.el, active && !(lost && progress === null));
    const moving = active && !lost;
    const usual = number(header.usual_s);
    let told = "";
    if (lost) told = progress === null ? "" : "when last heard of";
    else if (shown !== "running") told = "";
    else if (header.exceeded) told = `takes longer than ${usual === null ? "expected" : `the expected ${expected(usual)}`}`;
    else if (progress === null) told = "time left not known";
    else if (left !== null) told = `${left} left`;
    const basis = progress !== null && moving && shown === "running" ? (header.basis ?? "") : "";
    this.#overall.draw({ progress, left: told, known: told === `${left} left`, basis, moving });
    return { progress: moving && shown === "running" ? progress : null, left: told };
  }

  /** Draw what is around the rows. */
  #drawTree() {
    const { header, status } = this.#session;
    const rows = this.#order.flatMap((id) => this.#rows.get(id) ?? []);
    const more = number(header.more_paths) ?? 0;
    const paths = rows.reduce((sum, row) => sum + 1 + (number(row.info.folded) ?? 0), more);
    setShown(this.#tree, rows.length > 0);
    setText(this.#treeSummary, plural(paths, "phase"));
    setShown(this.#more, more > 0);
    setText(this.#more, more > 0 ? `+${plural(more, "more phase")}` : "");
    const open = status !== "succeeded";
    if (this.#treeChosen || this.#tree.open === open) return;
    // What is folded away loses the focus.
    if (!open && this.#list.contains(document.activeElement)) this.#treeSummary.focus({ preventScroll: true });
    this.#tree.open = open;
  }

  /**
   * Hide what a saved notebook shows of the build instead of this card: where the card shows the end, too, it would be
   * seen twice; before that it is empty.
   */
  #hideSaved() {
    const { header, final } = this.#session;
    const id = header.build_id ?? "";
    const usable = /^[0-9a-f]{1,64}$/.test(id);
    setAttribute(this.#root, "data-build-id", usable ? id : null);
    const saved = `.trt-saved-${id}${final ? "" : ":empty"}`;
    const whole = `.jp-OutputArea-child:has(> .jp-OutputArea-output > ${saved})`;
    // A browser drops a rule with a selector that it does not know, so each has its own.
    const rules = [saved, whole].map((selector) => `${selector} { display: none !important; }`);
    setText(this.#style, usable ? rules.join("\n") : "");
  }

  /** Say in a line what matters now. @param {number} now @param {Row | null} running @returns {{kind: string, sentence: Sentence}} */
  #sentence(now, running) {
    const { header, status, contact, clock, busy, request } = this.#session;
    if (contact === "gone") {
      const ended = status === "pending" ? "the build was not started" : "the build ended with it";
      const what = header.executor === "followed" ? "the build may go on where it runs" : ended;
      return { kind: "lost", sentence: [`The kernel has gone; ${what}`] };
    }
    if (contact === "lost") {
      return { kind: "lost", sentence: ["No connection to the kernel; the build may go on. This view shows what was last heard."] };
    }
    if (contact === "quiet") {
      return { kind: "lost", sentence: [`No news from the kernel for ${growing(clock.quiet)}; it may be busy, restarted or gone`] };
    }
    if (busy) {
      const why = request?.sent ? "The kernel is busy; if this lasts, use " : "The kernel cannot be reached; use ";
      return { kind: "busy", sentence: [`${why}Kernel ▸ Interrupt`] };
    }
    switch (status) {
      case "pending":
        if (header.blocked_by) return { kind: "blocked", sentence: ["Waiting for ", { name: header.blocked_by }, " to finish"] };
        return { kind: "detail", sentence: header.detail ? [{ name: header.detail }] : ["Not started yet"] };
      case "running":
      case "cancelling":
        return this.#activityNow(now, running);
      default:
        return { kind: "detail", sentence: this.#outcome() };
    }
  }

  /** Say what runs, and since when nothing was heard of it. @param {number} now @param {Row | null} running */
  #activityNow(now, running) {
    const { header, status } = this.#session;
    /** @type {Sentence} */
    const sentence = [];
    const label = running?.info.label ?? "";
    const at = performance.now();
    if (this.#activity.label === "" || label === "" || at - this.#activity.at > ACTIVITY_MS) {
      if (label !== this.#activity.label) this.#activity = { label, at };
    }
    if (this.#activity.label) sentence.push({ name: this.#activity.label });
    else if (this.#order.length === 0) sentence.push("Reading the network; no phase yet");
    else if (this.#rows.size === 0) sentence.push(this.#unseen);
    else sentence.push(this.#rows.get(this.#order[0] ?? "")?.info.status === "done" ? "Finishing" : "Between two phases");
    const last = number(header.last_callback);
    const touched = this.#order.map((id) => number(this.#rows.get(id)?.info.touched) ?? -Infinity);
    const silence = now - Math.max(last ?? -Infinity, ...touched);
    const silent = Number.isFinite(silence) && silence > TELL_SILENCE_S && this.#order.length > 0;
    if (status === "cancelling") {
      const since = silent ? ` (the last one was ${growing(silence)} ago)` : "";
      sentence.push(` · ${untilStopped(header, now) ?? `waits for TensorRT's next callback${since}`}`);
      return { kind: "stopping", sentence };
    }
    if (silent) {
      sentence.push(` · no callback for ${growing(silence)} (normal: TensorRT is silent while it optimizes)`);
      return { kind: "silent", sentence };
    }
    if (header.can_cancel === false) {
      const where = header.executor === "followed" ? "it can be cancelled where it runs only" : "to stop it, use Kernel ▸ Interrupt";
      sentence.push(` · ${where}`);
    }
    return { kind: "activity", sentence };
  }

  /** What stands for phases of which no row has come. */
  get #unseen() {
    if (!nests(this.#widgets)) return "This front end cannot show the phases' bars";
    const failed = this.#order.every((id) => this.#missing.has(id));
    return failed ? "The phases' bars cannot be loaded" : "Loading the phases";
  }

  /** @returns {Sentence} */
  #outcome() {
    const { header, status } = this.#session;
    /** @type {Sentence} */
    const sentence = [];
    const bytes = number(header.engine_bytes);
    if (status === "succeeded") {
      const [started, ended] = [number(header.started), number(header.ended)];
      const time = started === null || ended === null ? "" : ` in ${duration(ended - started)}`;
      const made = header.cached ? "from the cache" : "built";
      if (bytes !== null) sentence.push(`Engine of ${size(bytes)} ${made}${time}`);
      else if (time) sentence.push(`Engine ${made}${time}`);
    }
    const latency = number(header.stop_latency_s);
    if (latency !== null && status === "cancelled") {
      sentence.push(`Stopped after ${duration(latency)}${header.ending ? ` (${header.ending})` : ""}`);
    } else if (latency !== null && status !== "succeeded") sentence.push(`Ended ${duration(latency)} after Cancel`);
    const peak = number(header.peak_memory_bytes);
    const whose = ["process", "dask", "followed"].includes(header.executor ?? "") ? "" : " of this kernel";
    // Behind what is measured, too; else behind the cause.
    const first = sentence.length > 0;
    if (peak !== null && first) sentence.push(` · peak memory${whose} ${memory(peak)}`);
    const warnings = number(header.warnings) ?? 0;
    if (first && status === "succeeded" && warnings > 0) sentence.push(` · ${plural(warnings, "warning")}`);
    if (header.detail) sentence.push(...(first ? [" · "] : []), { name: header.detail });
    else if (!first && status === "ended") sentence.push("The outcome is not known.");
    if (peak !== null && !first) sentence.push(`${sentence.length > 0 ? " " : ""}Peak memory${whose}: ${memory(peak)}.`);
    return sentence;
  }

  /** @param {string} kind @param {Sentence} sentence */
  #drawNote(kind, sentence) {
    const drawn = JSON.stringify([kind, sentence]);
    if (drawn === this.#noteDrawn) return;
    this.#noteDrawn = drawn;
    this.#note.dataset["kind"] = kind;
    this.#note.hidden = sentence.length === 0;
    this.#fill(this.#noteText, sentence);
    this.#noteText.title = kind === "detail" ? "" : plain(sentence);
  }

  /** Fill an element with a sentence. @param {Element} element @param {Sentence} sentence */
  #fill(element, sentence) {
    if (element.textContent === plain(sentence) && element.childNodes.length === sentence.length) return;
    element.replaceChildren(
      ...sentence.map((part) => {
        if (typeof part === "string") return part;
        const name = foreign("trt-quoted");
        name.textContent = part.name;
        return name;
      }),
    );
  }

  #drawNotes() {
    const notes = this.#session.header.notes ?? [];
    setShown(this.#notes, notes.length > 0);
    setAttribute(this.#notes, "dir", "auto");
    setText(this.#notes, notes.join(" "));
  }

  #drawExplanation() {
    const { header, status } = this.#session;
    const failure = status === "failed" ? (header.failure ?? null) : null;
    const drawn = JSON.stringify(failure);
    if (drawn === this.#explained) return;
    this.#explained = drawn;
    /** @type {HTMLElement[]} */
    const blocks = [];
    const facts = failure?.facts ?? [];
    if (facts.length > 0) {
      const list = make("dl", "trt-facts");
      for (const [name, value] of facts) list.append(filled("dt", "", name), filled("dd", "", value));
      blocks.push(list);
    }
    blocks.push(...paragraphs(failure?.details ?? ""));
    const evidence = failure?.evidence ?? [];
    if (evidence.length > 0) {
      const list = make("ul", "trt-evidence");
      list.setAttribute("role", "list");
      list.append(...evidence.map((line) => filled("li", "", line)));
      blocks.push(filled("div", "trt-part", "Evidence"), list);
    }
    if (failure?.remedy) blocks.push(filled("div", "trt-part", "What to do"), ...paragraphs(failure.remedy));
    const words = failure?.words ?? [];
    if (words.length > 0) {
      const fold = make("details", "trt-words");
      const more = number(failure?.more) ?? 0;
      fold.append(filled("summary", "", `TensorRT said (${plural(words.length + more, "message")})`));
      fold.append(...words.map((line) => filled("div", "trt-verbatim", line)));
      if (more > 0) fold.append(filled("div", "trt-sentences", `… and ${whole.format(more)} more in .messages of the exception`));
      blocks.push(fold);
    }
    this.#explanation.replaceChildren(...blocks);
    setShown(this.#explanation, blocks.length > 0);
  }

  /**
   * Tell those who listen, once per change of what matters; return whether something was told.
   *
   * @param {Status} shown
   * @param {Contact} contact
   * @param {Sentence} sentence
   */
  #announce(shown, contact, sentence) {
    const { final, busy, header } = this.#session;
    const key = `${shown} ${contact} ${busy} ${header.blocked_by ?? ""}`;
    if (key === this.#said) return false;
    const first = this.#said === "";
    this.#said = key;
    // A build that has ended long ago is no news.
    if (first && final) return false;
    const word = contact === "live" ? STATUS[shown][1] : NO_CONTACT[contact];
    const more = final || contact !== "live" || busy || header.blocked_by ? `. ${plain(sentence)}` : "";
    this.#say(`${word}${more}`);
    return true;
  }

  /** Tell them of each quarter, and that it takes long. @param {{progress: number | null, left: string}} outlook */
  #announceProgress({ progress, left }) {
    if (progress === null) return;
    const milestone = `${Math.floor(progress * 4)} ${this.#session.header.exceeded === true}`;
    if (milestone === this.#milestone) return;
    const first = this.#milestone === "";
    if (!first && performance.now() - this.#saidAt < RARELY_MS) return;
    this.#milestone = milestone;
    if (!first) this.#say([percent(progress), left].filter(Boolean).join(", "));
  }

  /** @param {string} text */
  #say(text) {
    this.#saidAt = performance.now();
    setText(this.#live, `${this.#session.header.name ?? "Build"}: ${text}`);
  }
}

/** An element with foreign text. @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string} className @param {string} text */
function filled(tag, className, text) {
  const element = make(tag, className);
  element.dir = "auto";
  element.textContent = text;
  return element;
}

/** Blocks of a plain text: indented lines are tables and quotations, the others are sentences. @param {string} text */
function paragraphs(text) {
  /** @type {HTMLElement | undefined} */
  let block;
  const blocks = [];
  const trimmed = text.replace(/^\s*\n/, "").trimEnd();
  for (const line of trimmed === "" ? [] : trimmed.split("\n")) {
    const kind = line === "" || line.startsWith(" ") ? "trt-verbatim" : "trt-sentences";
    if (block?.className === kind) block.append("\n");
    else blocks.push((block = make("div", kind)));
    block.dir = "auto";
    block.append(line.replace(/^ {1,2}/, ""));
  }
  return blocks;
}

/** What Cancel does. @param {Header} header */
function howItStops(header) {
  if (header.executor === "thread" || header.executor === "attached") {
    return "A build in this kernel itself can stop only at one of TensorRT's callbacks";
  }
  if (header.executor === "followed") return "Asks the process that builds to stop";
  const grace = number(header.grace);
  if (grace === null) return null;
  if (grace === 0) return "Ends the build process";
  return `Asks TensorRT to stop; the build process is ended after ${grace} s`;
}

/** What happens next after a cancel, or null where it is up to TensorRT alone. @param {Header} header @param {number} now */
function untilStopped(header, now) {
  const [asked, grace] = [number(header.cancel_requested), number(header.grace)];
  if (asked === null || grace === null) return null;
  const left = asked + grace - now;
  // Rounded up: it is not ended before its time.
  if (left <= 0) return "the build process is being ended";
  const seconds = left < 10 ? (Math.ceil(left * 10) / 10).toFixed(1) : String(Math.ceil(left));
  return `asked TensorRT to stop; the build process is ended in ${seconds} s`;
}

/** @param {Sentence} sentence */
function plain(sentence) {
  return sentence.map((part) => (typeof part === "string" ? part : part.name)).join("");
}

/** anywidget calls this once per model, so that its views share a session. */
export default () => {
  /** @type {Session | undefined} */
  let session;

  /** @type {Initialize<CardState>} */
  function initialize({ model, signal }) {
    session = new Session(model, signal);
  }

  /** @type {Render<CardState>} */
  function render({ model, el }) {
    // anywidget renders only what it has initialized.
    if (!session) return undefined;
    const card = new Card(model, session, el);
    return () => card.dispose();
  }

  return { initialize, render };
};
