// What test_widget.py looks at from inside the page; evaluated once per page, as `window.trt`.
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

  /** Whatever CSS colour, as [r, g, b, alpha] with alpha from 0 to 1. */
  function rgba(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }

  function over([r, g, b, a], below) {
    return [r, g, b].map((channel, i) => channel * a + below[i] * (1 - a));
  }

  /** What is behind an element's text: its own background and those of its ancestors. */
  function background(element) {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, background(element.parentElement));
  }

  function luminance(rgb) {
    const [r, g, b] = rgb.map((channel) => {
      const c = channel / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function ratio(one, other) {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  }

  const visible = (element) => element.checkVisibility() && element.getClientRects().length > 0;

  /** The contrast of every piece of text in a card: [class, text, ratio]. */
  function textContrasts(card) {
    const found = [];
    const walker = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.data.trim();
      if (!text || !visible(element) || element.closest(".trt-live")) continue;
      const below = background(element);
      const colour = over(rgba(getComputedStyle(element).color), below);
      found.push([element.className || element.tagName, text.slice(0, 40), ratio(colour, below)]);
    }
    return found;
  }

  /** The contrast of every bar to its track: [status of its row, path, ratio]. */
  function barContrasts(card) {
    return [...card.querySelectorAll(".trt-row")].filter(visible).map((row) => {
      const track = background(row.querySelector(".trt-bar"));
      const bar = rgba(getComputedStyle(row.querySelector(".progress-bar")).backgroundColor);
      return [row.dataset.status, row.dataset.path, ratio(over(bar, track), track)];
    });
  }

  /** The contrast of what else is filled to what it fills: [class, ratio]. */
  function fillContrasts(card) {
    return [...card.querySelectorAll(".trt-whole-fill, .trt-slow-bar > span")].filter(visible).map((fill) => {
      const track = background(fill.parentElement);
      return [fill.parentElement.className, ratio(over(rgba(getComputedStyle(fill).backgroundColor), track), track)];
    });
  }

  /** Every green in a card: ["class: property"]. */
  function greens(card) {
    const properties = ["color", "background-color", "border-top-color", "border-left-color", "outline-color"];
    const found = [];
    for (const element of [card, ...card.querySelectorAll("*")]) {
      const style = getComputedStyle(element);
      for (const property of properties) {
        const [r, g, b, a] = rgba(style.getPropertyValue(property));
        if (a > 0 && g > r + 24 && g > b + 24) found.push(`${element.className}: ${property}`);
      }
    }
    return found;
  }

  /** What happened in the page: [time as of performance.now(), what and where, text]. */
  const events = [];
  const note = (what, text) => events.push([performance.now(), what, text]);

  /** Note every header that the kernel sends of a card. */
  function connect() {
    window.panel.sessionContext.session.kernel.anyMessage.connect((_, { msg, direction }) => {
      const header = msg.content.data?.state?.header;
      if (direction === "recv" && header) note(`message ${header.name}`, header.status);
    });
  }

  const cell = (element) => element.closest(".jp-Cell")?.dataset.windowedListIndex;

  /** Note every text that these parts of a card have had in the page, and the widths of its bars. */
  new MutationObserver((mutations) => {
    for (const { target } of mutations) {
      const element = target instanceof Element ? target : target.parentElement;
      for (const name of ["elapsed", "status", "cancel", "live", "percent", "left"]) {
        const part = element?.closest(`.trt-${name}`);
        if (part) note(`${name} ${cell(part)}`, part.textContent);
      }
      const row = element?.matches(".progress-bar") && element.closest(".trt-row");
      if (row) note(`bar ${cell(row)} ${row.dataset.path}`, element.style.width);
    }
  }).observe(document, { subtree: true, childList: true, characterData: true, attributeFilter: ["style"] });
  document.addEventListener("click", ({ target }) => note(`click ${cell(target)}`, target.className), true);

  connect();
  window.trt = { rgba, textContrasts, barContrasts, fillContrasts, greens, events, connect };
})();
