// The card of one build: header, Cancel, a tree of IntProgress bars, TensorRT's messages.
//
// Plain ES module, no build step, no network. What comes from the kernel is data and becomes text
// nodes, never HTML. The kernel sends what changed; clocks tick here, from start times.

/**
 * @typedef {object} Header What the kernel says of the build; times are its epoch seconds.
 * @property {string} [name] Display name of the model: a stranger's text.
 * @property {string} [status] pending, running, cancelling, succeeded, cancelled, failed, ended.
 * @property {string} [backend] Package and version.
 * @property {string | null} [device]
 * @property {string} [executor] Where the builder runs: thread or attached.
 * @property {number | null} [started]
 * @property {number | null} [ended]
 * @property {number | null} [last_callback]
 * @property {number | null} [cancel_requested]
 * @property {number | null} [stop_latency_s]
 * @property {string | null} [detail] A sentence for people.
 * @property {string | null} [explanation] A failure in full: cause, remedy, TensorRT's words.
 * @property {string | null} [blocked_by] The build that a pending one waits for.
 * @property {boolean} [can_cancel]
 * @property {number | null} [engine_bytes]
 * @property {number} [warnings]
 * @property {number} [errors]
 * @property {number} [more_paths] Paths that no row stands for.
 * @property {number} [spans_dropped]
 * @property {boolean} [replaced] The cell that made this ran again.
 * @property {number} [now] The kernel's clock when it sent this.
 */

/**
 * @typedef {object} Info What the kernel says of a row.
 * @property {string} label
 * @property {string} path
 * @property {number} depth
 * @property {number} count
 * @property {string} status running, done, cancelled, failed, ended.
 * @property {number} step
 * @property {number} total
 * @property {number} elapsed Seconds of the finished instances.
 * @property {number | null} since Start of the open instance.
 * @property {number} touched Time of the last callback.
 * @property {number} folded
 */

/** @typedef {{time: number, severity: string, message: string}} Message */

/**
 * @typedef {object} Model The part of a Backbone model that is used.
 * @property {(name: string) => any} get
 * @property {(content: unknown, callbacks?: unknown) => void} send
 * @property {(events: string, callback: () => void, context?: unknown) => void} on
 * @property {(events: string | null, callback: (() => void) | null, context?: unknown) => void} off
 * @property {boolean} [comm_live]
 * @property {any} [widget_manager]
 */

/** @typedef {{el: HTMLElement, trigger: (event: string) => void, remove: () => void}} View */

const FINAL = ["succeeded", "cancelled", "failed", "ended"];

/** @type {Record<string, string>} */
const WORDS = {
  pending: "Pending",
  running: "Running",
  cancelling: "Cancelling…",
  succeeded: "Succeeded",
  cancelled: "Cancelled",
  failed: "Failed",
  ended: "Ended",
};

/** @type {Record<string, string>} */
const ICONS = {
  pending: "○",
  running: "●",
  cancelling: "◐",
  succeeded: "✓",
  done: "✓",
  cancelled: "■",
  failed: "✕",
  ended: "–",
};

/** Seconds without a callback after which a running bar is indeterminate. */
const SILENT_S = 1;
/** Seconds without a callback after which the card says so. */
const SILENT_WORDS_S = 5;
/** Milliseconds without an answer after which the kernel is called busy. */
const ACKNOWLEDGE_MS = 2000;
/** Milliseconds without a sign of life (it comes every 2 s) after which the kernel is called lost. */
const LOST_MS = 10000;
/** Milliseconds between two ticks of the clocks. */
const TICK_MS = 200;

/**
 * Make an element with a class, some attributes and children.
 * @param {string} tag
 * @param {string} className
 * @param {Record<string, string>} [attributes]
 * @param {(Node | string)[]} children
 * @returns {HTMLElement}
 */
function make(tag, className, attributes = {}, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * Set a text only if it differs, so that nothing is laid out again for nothing.
 * @param {HTMLElement} element
 * @param {string} text
 */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

/**
 * @param {HTMLElement} element
 * @param {string} name
 * @param {string | null} value
 */
function attribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * @param {number} seconds
 * @returns {string}
 */
export function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  const [h, m, r] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h > 0) return `${h} h ${String(m).padStart(2, "0")} min`;
  return `${m} min ${String(r).padStart(2, "0")} s`;
}

/**
 * A duration that does not run any more: small ones in milliseconds.
 * @param {number} seconds
 * @returns {string}
 */
function short(seconds) {
  if (seconds >= 0.0995) return duration(seconds);
  return seconds < 0.001 ? "<1 ms" : `${Math.round(seconds * 1000)} ms`;
}

/**
 * @param {number} bytes
 * @returns {string}
 */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(1)} ${units[unit]}`;
}

/**
 * @param {number} count
 * @param {string} word
 * @returns {string}
 */
function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** One row: label, bar, steps, time. */
class Row {
  /**
   * @param {Model} model
   * @param {any} manager
   * @param {() => void} changed
   * @param {(path: string) => void} toggle
   */
  constructor(model, manager, changed, toggle) {
    this.model = model;
    this.toggle = make("button", "trt-toggle", { type: "button" }, "▾");
    this.label = make("span", "trt-label", { dir: "auto" });
    this.count = make("span", "trt-count");
    this.bar = make("div", "trt-bar", { role: "progressbar", "aria-valuemin": "0" });
    this.stripe = make("div", "trt-stripe");
    this.steps = make("span", "trt-steps");
    this.time = make("span", "trt-time");
    const name = make("div", "trt-row-name", {}, this.toggle, this.label, this.count);
    this.el = make("div", "trt-row", {}, name, this.bar, this.steps, this.time);
    this.bar.append(this.stripe);
    this.toggle.addEventListener("click", () => toggle(this.info().path));
    /** @type {View | null} */
    this.view = null;
    this.gone = false;
    this.changed = changed;
    model.on("change:info change:value change:max", changed, this);
    this.attach(manager);
  }

  /** @param {any} manager */
  async attach(manager) {
    try {
      const view = /** @type {View} */ (await manager.create_view(this.model));
      if (this.gone) {
        view.remove();
        return;
      }
      this.view = view;
      // Our own element carries the role and the values; this one is for the eye.
      view.el.setAttribute("aria-hidden", "true");
      this.bar.prepend(view.el);
      view.trigger("displayed");
    } catch (error) {
      console.warn("trt_widget: a bar could not be shown", error);
    }
  }

  /** @returns {Info} */
  info() {
    const info = this.model.get("info") || {};
    return {
      label: "", path: "", depth: 0, count: 1, status: "running", step: 0, total: 0,
      elapsed: 0, since: null, touched: 0, folded: 0, ...info,
    };
  }

  /**
   * Draw what only changes with the data.
   * @param {Header} header
   * @param {boolean} parent Whether rows below belong to it.
   * @param {boolean} collapsed
   */
  draw(header, parent, collapsed) {
    const info = this.info();
    const outcome = FINAL.includes(header.status || "") ? header.status || "" : "";
    const done = info.status === "done";
    this.el.style.setProperty("--depth", String(Math.min(info.depth, 12)));
    attribute(this.el, "data-status", info.status);
    attribute(this.el, "data-path", info.path);
    attribute(this.el, "data-depth", String(info.depth));
    say(this.label, info.label || "(without a name)");
    attribute(this.label, "title", info.path);
    const times = info.count > 1 ? `×${info.count.toLocaleString("en")}` : "";
    const folded = info.folded > 0 ? `+${counted(info.folded, "phase")}` : "";
    say(this.count, [times, folded].filter(Boolean).join(" "));
    attribute(this.toggle, "aria-expanded", String(!collapsed));
    attribute(this.toggle, "aria-label", `${collapsed ? "Show" : "Hide"} the phases below ${info.label}`);
    this.toggle.style.visibility = parent ? "visible" : "hidden";
    const known = info.total > 0;
    const steps = known ? `${info.step.toLocaleString("en")}/${info.total.toLocaleString("en")}` : "";
    let words = steps;
    if (done) words = `${ICONS.done} done`;
    else if (info.status !== "running") words = `${ICONS[info.status] || ""} ${info.status}`;
    say(this.steps, words);
    attribute(this.steps, "title", steps ? `${steps} steps` : null);
    attribute(this.bar, "aria-label", info.path);
    attribute(this.bar, "aria-valuemax", String(known ? info.total : 1));
    const running = info.status === "running" && !outcome;
    const value = done ? (known ? info.total : 1) : Math.min(info.step, info.total);
    attribute(this.bar, "aria-valuenow", running && !known ? null : String(Math.max(0, value)));
    const spoken = running ? (known ? `${info.step} of ${info.total} steps` : "running") : info.status;
    attribute(this.bar, "aria-valuetext", `${spoken}${info.count > 1 ? `, ${info.count} times` : ""}`);
  }

  /**
   * Draw what changes with time.
   * @param {number} now The kernel's clock.
   */
  tick(now) {
    const info = this.info();
    const open = info.since !== null && info.status === "running";
    const total = info.elapsed + (open ? Math.max(0, now - Number(info.since)) : 0);
    say(this.time, open ? duration(total) : short(total));
    const silent = open && (info.total < 1 || now - info.touched > SILENT_S);
    attribute(this.el, "data-silent", silent ? "true" : null);
  }

  remove() {
    this.gone = true;
    this.model.off(null, null, this);
    if (this.view) this.view.remove();
    this.el.remove();
  }
}

/** The whole card. */
class Card {
  /**
   * @param {Model} model
   * @param {HTMLElement} el
   */
  constructor(model, el) {
    this.model = model;
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    /** @type {Row[]} */
    this.order = [];
    /** @type {Set<string>} */
    this.collapsed = new Set();
    /** @type {Model | null} */
    this.channel = null;
    this.gone = false;
    this.lost = false;
    this.offset = Infinity;
    this.heard = performance.now();
    this.asked = 0;
    this.spoken = "";
    /** @type {Message[] | null} */
    this.drawn = null;
    this.turn = 0;
    this.frame = 0;
    this.timer = 0;

    this.icon = make("span", "trt-icon", { "aria-hidden": "true" });
    this.name = make("span", "trt-name", { dir: "auto" });
    this.status = make("span", "trt-status");
    this.elapsed = make("span", "trt-elapsed");
    this.cancel = make("button", "trt-cancel", { type: "button" }, "Cancel");
    this.facts = make("div", "trt-facts");
    this.note = make("div", "trt-note");
    this.blocker = make("button", "trt-blocker", { type: "button" });
    this.list = make("div", "trt-rows");
    this.more = make("div", "trt-more");
    this.explanation = make("div", "trt-explanation", { dir: "auto", tabindex: "0" });
    this.summary = make("summary", "trt-log-summary");
    this.entries = make("div", "trt-log-entries", { tabindex: "0", role: "log", "aria-live": "off" });
    this.log = make("details", "trt-log", {}, this.summary, this.entries);
    this.live = make("div", "trt-live", { role: "status", "aria-live": "polite" });
    this.el = make(
      "section", "trt-build", {},
      make("div", "trt-head", {},
        this.icon, this.name, make("span", "trt-state", {}, this.status, this.elapsed), this.cancel),
      this.facts,
      make("div", "trt-notes", {}, this.note, this.blocker),
      this.explanation, this.list, this.more, this.log, this.live,
    );
    el.append(this.el);

    this.cancel.addEventListener("click", () => this.ask());
    this.blocker.addEventListener("click", () => {
      this.send({ kind: "cancel_blocker" });
      this.blocker.setAttribute("aria-disabled", "true");
    });
    this.redraw = () => this.later();
    this.onHeader = () => {
      this.hear();
      this.later();
    };
    this.onRows = () => void this.arrange();
    model.on("change:header", this.onHeader);
    model.on("change:messages", this.redraw);
    model.on("change:rows", this.onRows);
    this.onVisible = () => this.later();
    document.addEventListener("visibilitychange", this.onVisible);
    this.hear();
    this.draw();
    void this.open();
    void this.arrange();
  }

  /** @returns {Header} */
  header() {
    return this.model.get("header") || {};
  }

  /** Take the kernel's clock from a message. */
  hear() {
    const now = this.header().now;
    this.heard = performance.now();
    this.lost = false;
    if (typeof now === "number") this.offset = Math.min(this.offset, Date.now() / 1000 - now);
  }

  /** @returns {number} The kernel's clock, as well as it is known. */
  now() {
    const frozen = this.lost ? (performance.now() - this.heard) / 1000 : 0;
    return Date.now() / 1000 - (Number.isFinite(this.offset) ? this.offset : 0) - frozen;
  }

  /** Find the comm that the kernel only receives on. */
  async open() {
    const reference = String(this.model.get("cancel_channel") || "");
    try {
      const id = reference.replace(/^IPY_MODEL_/, "");
      const channel = /** @type {Model} */ (await this.model.widget_manager.get_model(id));
      if (this.gone) return;
      this.channel = channel;
      channel.on("comm_live_update", this.redraw, this);
    } catch (error) {
      console.warn("trt_widget: no way to cancel from here", error);
    }
    this.later();
  }

  /** @param {unknown} content */
  send(content) {
    if (this.channel) this.channel.send(content, {});
  }

  /** Cancel was pressed: answer at once, then tell the kernel. */
  ask() {
    const header = this.header();
    if (!header.can_cancel || this.asked || this.dead()) return;
    this.asked = performance.now();
    this.send({ kind: "cancel" });
    this.draw();
  }

  /** @returns {boolean} Whether nobody is at the other end any more. */
  dead() {
    return this.channel !== null && this.channel.comm_live === false;
  }

  /** Bring the rows into the kernel's order, keeping those that stay. */
  async arrange() {
    const turn = (this.turn += 1);
    const manager = this.model.widget_manager;
    /** @type {string[]} */
    const references = this.model.get("rows") || [];
    const ids = references.map((reference) => String(reference).replace(/^IPY_MODEL_/, ""));
    const models = await Promise.all(
      ids.map((id) =>
        this.rows.has(id) ? null : Promise.resolve(manager.get_model(id)).catch(() => undefined)),
    );
    if (this.gone || turn !== this.turn) return;
    const wanted = new Set(ids);
    for (const [id, row] of this.rows) {
      if (!wanted.has(id)) {
        row.remove();
        this.rows.delete(id);
      }
    }
    ids.forEach((id, index) => {
      const model = models[index];
      if (model && !this.rows.has(id)) {
        this.rows.set(id, new Row(model, manager, this.redraw, (path) => this.fold(path)));
      }
    });
    this.order = ids.flatMap((id) => this.rows.get(id) || []);
    this.order.forEach((row, index) => {
      if (this.list.children[index] !== row.el) {
        this.list.insertBefore(row.el, this.list.children[index] || null);
      }
    });
    this.draw();
  }

  /** @param {string} path */
  fold(path) {
    if (!this.collapsed.delete(path)) this.collapsed.add(path);
    this.draw();
  }

  /** Draw soon: what comes in one message is drawn once. */
  later() {
    if (!this.frame && !this.gone) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
  }

  draw() {
    if (this.gone) return;
    const header = this.header();
    const status = header.status || "pending";
    const final = FINAL.includes(status);
    const asked = this.asked > 0 && !final;
    const shown = asked ? "cancelling" : status;
    attribute(this.el, "data-status", shown);
    attribute(this.el, "aria-label", `TensorRT build of ${header.name || "a model"}`);
    say(this.icon, ICONS[shown] || "");
    say(this.name, header.name || "");
    attribute(this.name, "title", header.name || "");
    const waits = status === "pending" && header.blocked_by;
    say(this.status, waits ? "Waiting" : WORDS[shown] || shown);

    const can = Boolean(header.can_cancel) && !asked && !this.dead();
    attribute(this.cancel, "aria-disabled", String(!can));
    say(this.cancel, final ? "" : shown === "cancelling" ? "Cancelling…" : "Cancel");
    attribute(this.cancel, "aria-label", shown === "cancelling" ? "Cancelling" : `Cancel the build of ${header.name || "the model"}`);

    const facts = [header.backend, header.device];
    if (header.engine_bytes) facts.push(`engine ${size(header.engine_bytes)}`);
    if (header.spans_dropped) facts.push(`${header.spans_dropped.toLocaleString("en")} phases counted only`);
    say(this.facts, facts.filter(Boolean).join(" · "));
    say(this.blocker, waits ? `Cancel ${header.blocked_by}` : "");
    if (!waits) this.blocker.removeAttribute("aria-disabled");
    say(this.explanation, header.explanation || "");
    say(this.more, header.more_paths ? `+${counted(header.more_paths, "phase")} without a row` : "");
    this.drawMessages(header);

    let hiddenBelow = Infinity;
    this.order.forEach((row, index) => {
      const { depth, path } = row.info();
      if (depth <= hiddenBelow) hiddenBelow = Infinity;
      row.el.hidden = depth > hiddenBelow;
      const next = this.order[index + 1];
      const parent = next !== undefined && next.info().depth > depth;
      const collapsed = parent && this.collapsed.has(path);
      if (collapsed && hiddenBelow === Infinity) hiddenBelow = depth;
      row.draw(header, parent, collapsed);
    });

    if (shown !== this.spoken) {
      // Only a change of state is announced; the first drawing is no change.
      if (this.spoken) this.live.textContent = `Build of ${header.name || "the model"}: ${WORDS[shown] || shown}`;
      this.spoken = shown;
    }
    this.tick();
  }

  /** @param {Header} header */
  drawMessages(header) {
    /** @type {Message[]} */
    const messages = this.model.get("messages") || [];
    this.log.hidden = messages.length === 0;
    const parts = [];
    if (header.errors) parts.push(counted(header.errors, "error"));
    if (header.warnings) parts.push(counted(header.warnings, "warning"));
    say(this.summary, parts.join(", ") || counted(messages.length, "message"));
    if (this.drawn === messages) return;
    this.drawn = messages;
    this.entries.replaceChildren(
      ...messages.map((message) =>
        make("div", "trt-log-entry", { "data-severity": String(message.severity) },
          make("span", "trt-log-time", {}, `${Number(message.time).toFixed(2)} s`),
          make("span", "trt-log-severity", {}, String(message.severity).replace("_", " ")),
          make("span", "trt-log-text", { dir: "auto" }, String(message.message)))),
    );
  }

  /** Draw what changes with time, and decide whether the clocks go on. */
  tick() {
    const header = this.header();
    const status = header.status || "pending";
    const live = status === "running" || status === "cancelling";
    const dead = this.dead();
    this.lost = live && (dead || performance.now() - this.heard > LOST_MS);
    attribute(this.el, "data-lost", this.lost ? "true" : null);
    const now = this.now();
    const started = header.started;
    let elapsed = "";
    if (typeof started === "number") {
      elapsed = duration((typeof header.ended === "number" ? header.ended : now) - started);
    }
    say(this.elapsed, elapsed);
    say(this.note, this.words(header, status, now, dead));
    for (const row of this.order) row.tick(now);

    const go = (live && !dead) || (this.asked > 0 && !FINAL.includes(status));
    if (go && !this.timer && !document.hidden) {
      this.timer = setInterval(() => this.tick(), TICK_MS);
    } else if (this.timer && (!go || document.hidden)) {
      clearInterval(this.timer);
      this.timer = 0;
    }
  }

  /**
   * The one line that says what a reader has to know now.
   * @param {Header} header
   * @param {string} status
   * @param {number} now
   * @param {boolean} dead
   * @returns {string}
   */
  words(header, status, now, dead) {
    if (status === "failed" && header.explanation) return "";
    if (FINAL.includes(status)) {
      const parts = [header.detail];
      if (status === "cancelled" && typeof header.stop_latency_s === "number") {
        parts.push(`Stopped ${duration(header.stop_latency_s)} after it was asked to.`);
      }
      return parts.filter(Boolean).join(" ");
    }
    if (dead) return "The kernel has gone: it was restarted or has died, and the build with it.";
    if (this.lost) {
      const since = Math.round((performance.now() - this.heard) / 1000);
      return `No sign of life from the kernel for ${since} s. Was it restarted?`;
    }
    if (this.asked && status !== "cancelling" && performance.now() - this.asked > ACKNOWLEDGE_MS) {
      return "The kernel is busy and has not answered yet. If this lasts, use Kernel ▸ Interrupt.";
    }
    if (status === "pending") return header.detail || "";
    const touched = this.order.map((row) => row.info().touched);
    const silence = now - Math.max(header.last_callback || 0, ...touched);
    const parts = [];
    if (status === "cancelling" && header.executor === "thread" && silence > SILENT_S) {
      parts.push("TensorRT can be stopped at its next callback only.");
    }
    if (silence > SILENT_WORDS_S) {
      parts.push(`No callback for ${Math.floor(silence)} s; TensorRT is silent for much of a build.`);
    }
    return parts.join(" ");
  }

  remove() {
    this.gone = true;
    clearInterval(this.timer);
    cancelAnimationFrame(this.frame);
    document.removeEventListener("visibilitychange", this.onVisible);
    this.model.off("change:header", this.onHeader);
    this.model.off("change:messages", this.redraw);
    this.model.off("change:rows", this.onRows);
    if (this.channel) this.channel.off("comm_live_update", this.redraw, this);
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.order = [];
    this.el.remove();
  }
}

export default {
  /** @param {{model: Model, el: HTMLElement}} context */
  render({ model, el }) {
    const card = new Card(model, el);
    return () => card.remove();
  },
};
