"use strict";
// What all pages use: their data, elements, numbers for readers, buttons. Names enter as text, never as markup.
const fedspam = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = 10;

  // --- data ---

  /** The JSON in the page. Its objects have no prototype: any name, even "constructor", is only a name. */
  function pageData() {
    const bare = (value) => {
      if (value === null || typeof value !== "object") return value;
      // lists of numbers, which are long, are left as they are
      if (Array.isArray(value)) return value.some((part) => typeof part === "object" && part !== null) ? value.map(bare) : value;
      return Object.assign(Object.create(null), Object.fromEntries(Object.entries(value).map(([name, part]) => [name, bare(part)])));
    };
    return bare(JSON.parse(document.getElementById("data").textContent));
  }

  // a loop, since Math.max(...values) fails for very long lists
  const range = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  /** Whether a logarithmic axis suits the values: all positive, and the largest over 30 times the smallest. */
  function spansDecades(values) {
    const [low, high] = range(values.filter((value) => value !== null));
    return low > 0 && high > 30 * low;
  }

  // --- elements ---

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function shape(tag, attributes = {}, text = null) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    return made;
  }

  const color = (number) => (number === null ? "var(--soft)" : `var(--series-${number % COLORS})`);
  const dashes = (number) => ["", "7 4", "2 3", "8 3 2 3"][Math.floor(number / COLORS) % 4];

  // --- numbers for readers ---

  const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  const power = (exponent) => `10${[...String(exponent)].map((digit) => SUPERSCRIPT[digit]).join("")}`;

  function number(value, digits = 3) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e6 || size < 1e-3) {
      const [front, exponent] = value.toExponential(digits - 1).split("e");
      return Number(front) === 1 ? power(Number(exponent)) : `${Number(front)}·${power(Number(exponent))}`;
    }
    const whole = String(Math.trunc(size)).length;
    return size >= 1000 ? value.toLocaleString("en-US", { maximumSignificantDigits: Math.max(digits, whole) }) : String(Number(value.toPrecision(digits)));
  }

  function scaled(value, units, step = 1000) {
    let amount = value;
    let unit = 0;
    while (Math.abs(amount) >= step && unit < units.length - 1) {
      amount /= step;
      unit += 1;
    }
    const text = Math.abs(amount) >= 100 ? String(Math.round(amount)) : String(Number(amount.toPrecision(3)));
    return units[unit] ? `${text} ${units[unit]}` : text;
  }

  function amount(value, measure) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (measure === "bytes" || measure === "bytes_up") return scaled(value, ["B", "kB", "MB", "GB", "TB"]);
    if (measure === "seconds") {
      if (value >= 120) return value >= 7200 ? `${number(value / 3600)} h` : `${number(value / 60)} min`;
      return value > 0 && value < 1 ? `${number(value * 1000)} ms` : `${number(value)} s`;
    }
    return value >= 1e5 ? scaled(value, ["", "k", "M", "G"]) : value.toLocaleString("en-US", { maximumFractionDigits: 1 });
  }

  function swatch(number, bound = false) {
    const made = shape("svg", { class: "swatch", viewBox: "0 0 22 8", "aria-hidden": "true" });
    const line = shape("line", { x1: 1, x2: 21, y1: 4, y2: 4 });
    line.style.stroke = color(number);
    const pattern = bound ? "2 4" : dashes(number);
    if (pattern) line.setAttribute("stroke-dasharray", pattern);
    made.append(line);
    return made;
  }

  // --- small parts that both pages use ---

  /** The logo: clients that send to a server. */
  function mark() {
    const svg = shape("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" });
    for (const y of [5, 12, 19]) {
      const link = shape("path", { d: `M3.5 ${y}C11 ${y} 12 12 20 12`, fill: "none", "stroke-width": 1.6 });
      link.style.stroke = "var(--accent)";
      const dot = shape("circle", { cx: 3.5, cy: y, r: 2.1 });
      dot.style.fill = "var(--accent)";
      svg.append(link, dot);
    }
    const center = shape("circle", { cx: 20, cy: 12, r: 3.1 });
    center.style.fill = "var(--series-1)";
    svg.append(center);
    return svg;
  }

  /** Buttons of which one is pressed; `press(value)` presses another. `options`: [{value, label, title, disabled}]. */
  function choice(name, options, value, changed) {
    const group = element("div", { class: "choice", role: "group", "aria-label": name });
    const press = (chosen) => {
      for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
    };
    for (const option of options) {
      const button = element("button", { type: "button", title: option.title ?? null, disabled: Boolean(option.disabled) }, option.label);
      button.dataset.value = option.value;
      button.addEventListener("click", () => { press(option.value); changed(option.value); });
      group.append(button);
    }
    press(value);
    return Object.assign(group, { press });
  }

  function copyButton(text, label = "Copy") {
    const button = element("button", { type: "button", class: "copy" }, label);
    button.addEventListener("click", async () => {
      const wanted = typeof text === "function" ? text() : text;
      let done = true;
      try {
        await navigator.clipboard.writeText(wanted);
      } catch {
        // pages that were opened as files may not use the clipboard
        const area = element("textarea", { class: "offscreen", readonly: true });
        area.value = wanted;
        document.body.append(area);
        area.select();
        done = document.execCommand("copy");
        area.remove();
      }
      button.textContent = done ? "Copied" : "Select and copy";
      setTimeout(() => { button.textContent = label; }, 1600);
    });
    return button;
  }

  return { amount, choice, color, copyButton, dashes, element, mark, number, pageData, power, range, shape, spansDecades, swatch };
})();
