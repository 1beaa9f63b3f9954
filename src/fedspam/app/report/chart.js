"use strict";
// Curves in SVG: logarithmic or linear axes, bands, bounds, and values under the pointer. Names enter as text, never as markup.
const fedspam = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const BEYOND = 1e3; // the axis ends at this factor above the first value; curves that diverge leave the picture
  const COLORS = 10;
  const CROWD = 40; // curves, above which they are drawn thin and pale

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

  /** Whether the race ends early: a quarter of the curves make four fifths of their way in the first twelfth of the axis. */
  function endsEarly(lines, logarithmic) {
    const [, end] = range(lines.flatMap(({ x }) => x.filter((value) => value !== null)));
    const arrivals = lines.map(({ x, y }) => {
      const there = y.map((value, i) => i).filter((i) => drawn(y[i], logarithmic) && x[i] !== null);
      const way = there.map((i) => (logarithmic ? Math.log(y[i]) : y[i]));
      const far = way.map((value) => Math.abs(value - way[0]));
      const [, most] = range(far);
      return most > 0 ? x[there[far.findIndex((value) => value >= 0.8 * most)]] : end;
    }).sort((a, b) => a - b);
    return lines.length > 0 && lines.some(({ x }) => x.length > 24) && arrivals[Math.floor((arrivals.length - 1) / 4)] < end / 12;
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
    return size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
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

  // --- axes ---

  function linearTicks(low, high, wanted) {
    const rough = (high - low) / Math.max(1, wanted);
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * unit >= rough) * unit;
    const ticks = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
      ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
    }
    return ticks;
  }

  function logTicks(low, high, wanted) {
    const first = Math.ceil(Math.log10(low) - 1e-9);
    const last = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first + 1) / Math.max(2, wanted)));
    const ticks = [];
    for (let exponent = first; exponent <= last; exponent += step) ticks.push(10 ** exponent);
    if (ticks.length >= 3) return ticks;
    const fine = [1, 2, 5].flatMap((digit) => [first - 1, first, last].map((exponent) => digit * 10 ** exponent));
    return [...new Set(fine)].sort((a, b) => a - b).filter((tick) => tick >= low && tick <= high);
  }

  function scale(low, high, from, to, logarithmic) {
    const f = logarithmic ? Math.log : (value) => value;
    const [a, b] = [f(low), f(high)];
    const place = (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
    const back = (pixel) => {
      const inner = a + ((pixel - from) / (to - from || 1)) * (b - a);
      return logarithmic ? Math.exp(inner) : inner;
    };
    return { place, back, low, high };
  }

  const drawn = (value, logarithmic) => value !== null && Number.isFinite(value) && (!logarithmic || value > 0);

  function limits(lines, logX, logY) {
    const xs = [];
    const ys = [];
    let first = 0;
    for (const line of lines) {
      line.x.forEach((x, i) => {
        if (!drawn(x, logX)) return;
        xs.push(x);
        for (const y of [line.y[i], line.low?.[i], line.high?.[i]]) {
          if (y !== undefined && drawn(y, logY)) ys.push(y);
        }
      });
      const begin = line.y.find((y) => drawn(y, logY));
      if (begin !== undefined) first = Math.max(first, Math.abs(begin));
    }
    const [left, right] = xs.length ? range(xs) : [logX ? 1 : 0, logX ? 10 : 1];
    let [bottom, top] = ys.length ? range(ys) : [logY ? 0.1 : 0, 1];
    top = Math.min(top, Math.max(BEYOND * first, bottom));
    if (logY) [bottom, top] = [bottom / 1.35, top * 1.35];
    else {
      const room = 0.06 * (top - bottom) || 0.5 * Math.abs(top) || 1;
      [bottom, top] = [bottom >= 0 && bottom - room < 0 ? 0 : bottom - room, top + room];
    }
    return { left, right: right > left ? right : left + 1, bottom, top };
  }

  // --- the chart ---

  function path(line, x, y, logX, logY) {
    let text = "";
    let pen = false;
    line.x.forEach((value, i) => {
      const fits = drawn(value, logX) && drawn(line.y[i], logY);
      if (fits) {
        // browsers draw huge numbers wrongly; any value far outside will do
        const height = Math.max(-1e4, Math.min(1e4, y.place(line.y[i])));
        text += `${pen ? "L" : "M"}${x.place(value).toFixed(1)} ${height.toFixed(1)}`;
      }
      pen = fits;
    });
    return text;
  }

  function band(line, x, y, logX, logY) {
    const there = [];
    line.x.forEach((value, i) => {
      if (!drawn(value, logX) || !drawn(line.low[i], logY)) return;
      const high = drawn(line.high[i], logY) ? Math.max(-1e4, y.place(line.high[i])) : -1e4;
      there.push([x.place(value), Math.min(1e4, y.place(line.low[i])), high]);
    });
    if (there.length < 2) return "";
    const forth = there.map(([px, low]) => `${px.toFixed(1)} ${low.toFixed(1)}`);
    const back = there.reverse().map(([px, , high]) => `${px.toFixed(1)} ${high.toFixed(1)}`);
    return `M${forth.join("L")}L${back.join("L")}Z`;
  }

  let clips = 0;

  /** A chart inside `host`. `draw(model)`: {x: {label, log, measure}, y: {label, log}, lines: [{name, number, x, y, low, high, bound, width}], rules}. */
  function chart(host, name) {
    const clip = `clip-${(clips += 1)}`;
    const svg = shape("svg", { role: "img", tabindex: "0", "aria-label": name });
    const tip = element("div", { class: "tip", role: "status", hidden: true });
    host.classList.add("chart");
    host.append(svg, tip);
    let model = null;
    let view = null;
    let cursor = null;

    function draw() {
      if (model === null) return;
      const width = Math.max(240, host.clientWidth);
      const height = Math.max(180, host.clientHeight);
      const narrow = width < 560;
      const edge = { left: narrow ? 48 : 62, right: 14, top: 12, bottom: 44 };
      const { log: logX = false, measure = null } = model.x;
      const logY = Boolean(model.y.log);
      const seen = limits(model.lines, logX, logY);
      if (model.y.range) [seen.bottom, seen.top] = model.y.range;
      const x = scale(seen.left, seen.right, edge.left, width - edge.right, logX);
      const y = scale(seen.bottom, seen.top, height - edge.bottom, edge.top, logY);
      view = { x, y, logX, logY, width, height, edge, outer: `${host.clientWidth} ${host.clientHeight}` };
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const inside = { x: edge.left, y: edge.top, width: width - edge.left - edge.right, height: height - edge.top - edge.bottom };
      const area = shape("clipPath", { id: clip });
      area.append(shape("rect", inside));
      svg.append(area);

      if (!model.lines.some((line) => line.x.length)) {
        svg.append(shape("text", { class: "empty", x: width / 2, y: height / 2, "text-anchor": "middle" }, model.empty ?? "no curves"));
        point();
        return;
      }
      const grid = shape("g", { class: "grid" });
      const wantedX = Math.max(2, Math.floor(inside.width / 95));
      for (const tick of logX ? logTicks(seen.left, seen.right, wantedX) : linearTicks(seen.left, seen.right, wantedX)) {
        const at = x.place(tick);
        grid.append(shape("line", { x1: at, x2: at, y1: edge.top, y2: height - edge.bottom }));
        const label = logX && !String(measure).startsWith("bytes") ? decade(tick) : amount(tick, measure);
        grid.append(shape("text", { x: at, y: height - edge.bottom + 17, "text-anchor": "middle" }, label));
      }
      const wantedY = Math.max(3, Math.floor(inside.height / 46));
      for (const tick of logY ? logTicks(seen.bottom, seen.top, wantedY) : linearTicks(seen.bottom, seen.top, wantedY)) {
        const at = y.place(tick);
        grid.append(shape("line", { x1: edge.left, x2: width - edge.right, y1: at, y2: at }));
        grid.append(shape("text", { x: edge.left - 8, y: at + 4, "text-anchor": "end" }, logY ? decade(tick) : number(tick)));
      }
      svg.append(grid);
      svg.append(shape("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: height - edge.bottom, y2: height - edge.bottom }));
      svg.append(shape("text", { class: "label", x: edge.left + inside.width / 2, y: height - 6, "text-anchor": "middle" }, model.x.label));

      const plot = shape("g", { "clip-path": `url(#${clip})`, class: model.lines.length > CROWD ? "crowd" : "" });
      for (const rule of model.rules ?? []) {
        plot.append(shape("line", { class: "rule", x1: edge.left, x2: width - edge.right, y1: y.place(rule.at), y2: y.place(rule.at) }));
        plot.append(shape("text", { class: "rule", x: width - edge.right - 6, y: y.place(rule.at) - 6, "text-anchor": "end" }, rule.label));
      }
      for (const line of model.lines) {
        if (!line.low || !line.high) continue;
        const filled = shape("path", { class: "band", d: band(line, x, y, logX, logY) });
        filled.style.fill = color(line.number);
        if (line.opacity) filled.style.opacity = line.opacity;
        plot.append(filled);
      }
      for (const line of model.lines) {
        if (line.bandOnly) continue;
        const stroke = shape("path", { class: line.bound ? "curve bound" : "curve", d: path(line, x, y, logX, logY), "data-name": line.name });
        stroke.style.stroke = color(line.number);
        const pattern = line.bound ? "2 4" : dashes(line.number);
        if (pattern) stroke.setAttribute("stroke-dasharray", pattern);
        plot.append(stroke);
      }
      svg.append(plot);
      point();
    }

    // --- values under the pointer, a finger or the arrow keys ---

    function point() {
      svg.querySelector(".cursor")?.remove();
      if (cursor === null || view === null) {
        tip.hidden = true;
        return;
      }
      const { x, y, logX, logY, edge, width, height } = view;
      const pixel = Math.max(edge.left, Math.min(width - edge.right, cursor));
      const at = x.back(pixel);
      const group = shape("g", { class: "cursor" });
      group.append(shape("line", { x1: pixel, x2: pixel, y1: edge.top, y2: height - edge.bottom }));
      const found = [];
      for (const line of model.lines) {
        const i = nearest(line.x, at);
        if (i < 0 || line.silent || !drawn(line.x[i], logX)) continue;
        if (Math.abs(x.place(line.x[i]) - pixel) > 40) continue;
        found.push({ line, value: line.y[i], low: line.low?.[i], high: line.high?.[i] });
        if (!drawn(line.y[i], logY)) continue;
        const height = y.place(line.y[i]);
        if (height < edge.top - 1) continue;
        const dot = shape("circle", { cx: x.place(line.x[i]), cy: height, r: 4 });
        dot.style.fill = color(line.number);
        group.append(dot);
      }
      svg.append(group);
      tip.replaceChildren(element("div", { class: "tip-head" },
        `${amount(model.x.measure === "rounds" ? Math.round(at) : at, model.x.measure)} ${model.x.unit ?? ""}`.trim()));
      found.sort((a, b) => (b.value ?? Infinity) - (a.value ?? Infinity));
      for (const { line, value, low, high } of found.slice(0, 14)) {
        const around = low !== undefined && high !== undefined && !line.bandOnly ? ` [${number(low, 2)}, ${number(high, 2)}]` : "";
        tip.append(element("div", { class: "tip-row" }, swatch(line.number, line.bound), element("span", {}, line.name),
          element("b", {}, number(value)), element("small", {}, around)));
      }
      tip.hidden = !found.length;
      const box = tip.getBoundingClientRect();
      const outside = pixel + 16 + box.width > width;
      tip.style.left = `${Math.max(0, outside ? pixel - 16 - box.width : pixel + 16)}px`;
      tip.style.top = `${edge.top + 6}px`;
    }

    const follow = (event) => {
      if (view === null) return;
      const box = svg.getBoundingClientRect();
      cursor = ((event.clientX - box.left) / box.width) * view.width;
      point();
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    for (const leave of ["pointerleave", "blur"]) {
      svg.addEventListener(leave, () => {
        cursor = null;
        point();
      });
    }
    svg.addEventListener("keydown", (event) => {
      if (view === null) return;
      const [left, right] = [view.edge.left, view.width - view.edge.right];
      const at = cursor ?? left;
      const next = { ArrowLeft: at - 8, ArrowRight: at + 8, Home: left, End: right, Escape: null }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      cursor = next === null ? null : Math.max(left, Math.min(right, next));
      point();
    });
    new ResizeObserver(() => { if (view?.outer !== `${host.clientWidth} ${host.clientHeight}`) draw(); }).observe(host);
    return { draw: (next) => { model = next; draw(); } };
  }

  function decade(value) {
    const exponent = Math.log10(value);
    if (Math.abs(exponent - Math.round(exponent)) < 1e-6) {
      const whole = Math.round(exponent);
      return whole >= -1 && whole <= 3 ? String(Number((10 ** whole).toPrecision(1))) : power(whole);
    }
    return number(value, 1);
  }

  function nearest(values, wanted) {
    let [low, high] = [0, values.length - 1];
    if (high < 0) return -1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] <= wanted) low = middle;
      else high = middle;
    }
    return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
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

  return { amount, chart, choice, color, copyButton, element, endsEarly, logTicks, mark, number, pageData, power, range, scale, shape, spansDecades, swatch };
})();
