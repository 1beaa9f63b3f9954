"use strict";
// The plane of step size and fresh weight: the gradient norm at the end, where the theorems hold, and a dot to drag.
fedspam.plane = (host, ratios, fresh_weights, moved) => {
  const { element, logTicks, power, scale, shape } = fedspam;
  const svg = shape("svg", { role: "application", tabindex: "0", "aria-label": "step size and fresh weight: the gradient norm at the end, and where the theorems hold; the arrow keys move the dot" });
  host.append(svg);
  const legend = host.nextElementSibling;
  const opacity = (share) => String(0.05 + 0.8 * Math.max(0, Math.min(1, share)));
  let model = { exponents: null, region: null, ratio: 1, fresh_weight: 0.5 };
  let view = null;

  const edges = (values) => {
    const step = Math.sqrt(values[1] / values[0]);
    return values.map((value) => [value / step, value * step]);
  };

  function draw() {
    const [width, height] = [Math.max(240, host.clientWidth), Math.max(200, host.clientHeight)];
    const edge = { left: 46, right: 10, top: 8, bottom: 40 };
    const x = scale(ratios[0], ratios.at(-1), edge.left, width - edge.right, true);
    const y = scale(fresh_weights[0], fresh_weights.at(-1), height - edge.bottom, edge.top, true);
    view = { x, y, width, height };
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const clip = shape("clipPath", { id: "plane-clip" });
    clip.append(shape("rect", { x: edge.left, y: edge.top, width: width - edge.left - edge.right, height: height - edge.top - edge.bottom }));
    const inside = shape("g", { "clip-path": "url(#plane-clip)" });
    svg.append(clip, inside);

    if (model.exponents) {
      const found = model.exponents.flat().filter((value) => value !== null && value <= 0);
      const [best, worst] = [Math.min(-0.5, ...found), Math.min(0, Math.max(...found, -9))];
      const [columns, rows] = [edges(ratios), edges(fresh_weights)];
      model.exponents.forEach((row, i) => row.forEach((value, j) => {
        const [left, right] = columns[j].map(x.place);
        const [bottom, top] = rows[i].map(y.place);
        const lost = value === null || value > 0.3;
        const cell = shape("rect", { class: lost ? "cell lost" : "cell", x: left, y: top, width: right - left, height: bottom - top, "shape-rendering": "crispEdges" });
        if (!lost) cell.style.opacity = opacity((value - worst) / (best - worst || -1));
        inside.append(cell);
      }));
      colors(best, worst);
    } else {
      svg.append(shape("text", { class: "empty", x: (edge.left + width) / 2, y: height / 2, "text-anchor": "middle" }, "computed after the curves"));
      legend.replaceChildren();
    }
    if (model.region) {
      for (const [name, least, end] of [["region repaired", model.region.repaired, model.region.reach], ["region", model.region.least, model.region.limit]]) {
        const points = [];
        model.region.ratios.forEach((ratio, i) => {
          if (ratio <= end) points.push([ratio, least[i]]);
        });
        if (!points.length) continue;
        const limit = Math.max(ratios[0], end);
        points.push([limit, points.at(-1)[1]]);
        const outline = points.map(([ratio, p]) => `${x.place(ratio).toFixed(1)} ${y.place(Math.max(fresh_weights[0] / 2, p)).toFixed(1)}`);
        inside.append(shape("path", { class: name, d: `M${outline.join("L")}L${x.place(limit).toFixed(1)} ${edge.top}L${x.place(ratios[0] / 2).toFixed(1)} ${edge.top}L${x.place(ratios[0] / 2).toFixed(1)} ${outline[0].split(" ")[1]}Z` }));
      }
      if (model.region.limit > 3 * ratios[0]) inside.append(shape("text", { class: "proved", x: edge.left + 10, y: edge.top + 20 }, "proved"));
    }
    for (const tick of logTicks(ratios[0], ratios.at(-1), 5)) {
      svg.append(shape("text", { x: x.place(tick), y: height - edge.bottom + 16, "text-anchor": "middle" }, String(tick)));
    }
    for (const tick of [0.01, 0.03, 0.1, 0.3, 1]) {
      svg.append(shape("text", { x: edge.left - 7, y: y.place(tick) + 4, "text-anchor": "end" }, String(tick)));
    }
    svg.append(shape("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: height - edge.bottom, y2: height - edge.bottom }));
    svg.append(shape("text", { class: "label", x: (edge.left + width - edge.right) / 2, y: height - 5, "text-anchor": "middle" }, "step size γδ"));
    svg.append(shape("text", { class: "label", x: 12, y: edge.top + 14, "text-anchor": "middle" }, "p"));
    svg.append(shape("circle", { class: "dot", cx: x.place(model.ratio), cy: y.place(model.fresh_weight), r: 8 }));
  }

  /** The scale of the colors: from the largest norm to the smallest, and what diverges. */
  function colors(best, worst) {
    const steps = Array.from({ length: 9 }, (_, i) => {
      const step = element("i");
      step.style.opacity = opacity(i / 8);
      return step;
    });
    const decade = (exponent) => (Math.abs(exponent - Math.round(exponent)) < 0.05 ? power(Math.round(exponent)) : fedspam.number(10 ** exponent, 1));
    legend.replaceChildren(element("span", {}, decade(worst)), element("span", { class: "steps" }, ...steps), element("span", {}, decade(best)),
      element("i", { class: "lost" }), element("span", {}, "diverges"));
  }

  svg.addEventListener("keydown", (event) => {
    const factor = { ArrowLeft: [1 / 1.1, 1], ArrowRight: [1.1, 1], ArrowDown: [1, 1 / 1.1], ArrowUp: [1, 1.1] }[event.key];
    if (factor === undefined) return;
    event.preventDefault();
    move(model.ratio * factor[0], model.fresh_weight * factor[1]);
  });

  const within = (value, values) => Math.max(values[0], Math.min(values.at(-1), value));
  const move = (ratio, fresh_weight) => moved(Number(within(ratio, ratios).toPrecision(3)), Number(within(fresh_weight, fresh_weights).toPrecision(3)));

  const follow = (event) => {
    if (view === null || !(event.buttons & 1)) return;
    const box = svg.getBoundingClientRect();
    move(view.x.back(((event.clientX - box.left) / box.width) * view.width), view.y.back(((event.clientY - box.top) / box.height) * view.height));
  };
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    follow(event);
  });
  svg.addEventListener("pointermove", follow);
  new ResizeObserver(draw).observe(host);
  return { draw: (next) => { model = { ...model, ...next }; draw(); } };
};
