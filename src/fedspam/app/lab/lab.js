"use strict";
// The lab: sliders, curves that follow them, and the setting as a program to copy.
(() => {
  const { amount, chart, choice, copyButton, element, mark, number, pageData, plane, swatch } = fedspam;
  const data = pageData();
  const at = (id) => document.getElementById(id);
  const setting = { ...data.setting };
  const racing = new Set(["spam_pp", "mvr", "fedavg"]);
  const found = new Map(); // by method, the last answer
  let measure = "rounds";
  let copied = "python";
  let generation = 0;
  let planeOf = null; // what the plane was computed for
  let planeMethod = "spam_pp";
  const method = (key) => data.methods.find((one) => one.key === key);
  const numberOf = (key) => data.methods.findIndex((one) => one.key === key);

  // --- sliders ---

  const logarithmic = (low, high) => ({
    place: (value) => 1000 * (Math.log(value / low) / Math.log(high / low)),
    value: (position) => Number((low * (high / low) ** (position / 1000)).toPrecision(3)), most: 1000,
  });
  const listed = (values) => ({ place: (value) => values.indexOf(value), value: (position) => values[position], most: values.length - 1 });
  const kinds = (...wanted) => () => [...racing].some((key) => wanted.includes(method(key).kind));
  const SLIDERS = [
    { key: "scale", name: "similarity δ", ...logarithmic(0.001, 1), used: () => true, about: "how much the Hessians of the clients differ",
      text: () => { const known = found.values().next().value; return known && known.scale === setting.scale ? `δ/L = ${number(known.delta / known.smoothness)}` : `scale ${number(setting.scale)}`; } },
    { key: "ratio", name: "step size γ", ...logarithmic(data.ratios[0], data.ratios.at(-1)), used: kinds("prox"), about: "of the prox; the theorems allow at most 0.25/δ", text: () => `${number(setting.ratio)}/δ` },
    { key: "fresh_weight", name: "fresh weight p", ...logarithmic(data.fresh_weights[0], 1), used: () => [...racing].some((key) => method(key).fresh_weight), about: "of the new gradient; 1 ignores all earlier ones", text: () => number(setting.fresh_weight) },
    { key: "cohort", name: "cohort", ...listed(data.cohorts), used: () => [...racing].some((key) => key !== "spam"), about: "clients per round, of 100", text: () => String(setting.cohort) },
    { key: "steps", name: "local steps", ...listed([1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100]), used: () => kinds("local")() || (kinds("prox")() && setting.solver === "gradient"), about: "gradient steps per client and round", text: () => String(setting.steps) },
    { key: "local", name: "local rate η", ...logarithmic(0.01, 3), used: kinds("local", "server"), about: "step size of methods without a prox", text: () => `${number(setting.local)}/L` },
  ];

  for (const slider of SLIDERS) {
    const input = element("input", { type: "range", min: 0, max: slider.most, step: 1, id: `slider-${slider.key}` });
    input.value = String(slider.place(setting[slider.key]));
    slider.output = element("output", { for: input.id });
    slider.input = input;
    slider.row = element("div", { class: "slider" }, element("label", { for: input.id }, element("span", {}, slider.name), slider.output), input, element("small", {}, slider.about));
    input.addEventListener("input", () => {
      setting[slider.key] = slider.value(Number(input.value));
      changed();
    });
    at("controls").append(slider.row);
  }
  const solvers = { gradient: "gradient steps", exact: "exact", lbfgs: "L-BFGS" };
  at("controls").append(element("div", { class: "slider" }, element("label", {}, element("span", {}, "local solver")),
    choice("local solver", data.solvers.map((value) => ({ value, label: solvers[value] })), setting.solver, (value) => { setting.solver = value; changed(); }),
    element("small", {}, "how a client solves its prox; L-BFGS stops when its certificate holds")));
  at("controls").append(element("button", { type: "button", class: "wide", onclick: () => { setting.seed += 1; changed(); } }, "New random clients and cohorts"));

  // --- methods ---

  const buttons = data.methods.map(({ key, name }) => {
    const value = element("small");
    const button = element("button", { type: "button" }, swatch(numberOf(key)), name, value);
    button.dataset.method = key;
    button.addEventListener("click", () => {
      if (!racing.delete(key)) racing.add(key);
      setting.method = racing.has(key) ? key : [...racing][0] ?? setting.method;
      changed();
    });
    return { key, button, value };
  });
  at("methods").append(...buttons.map(({ button }) => button));

  function methods() {
    for (const { key, button, value } of buttons) {
      const on = racing.has(key);
      button.setAttribute("aria-pressed", String(on));
      button.classList.toggle("focus", on && setting.method === key);
      value.textContent = on && found.has(key) ? number(found.get(key).median.at(-1), 2) : "";
    }
  }

  // --- requests ---

  async function ask(path, wanted) {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wanted) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  const waiting = (ms) => new Promise((done) => { setTimeout(done, ms); });
  let asking = Promise.resolve();

  function changed() {
    const mine = (generation += 1);
    show();
    if (!racing.size) {
      say("no method is chosen");
      return;
    }
    // one request at a time; settings that changed in the meantime are never requested
    asking = asking.then(async () => {
      await waiting(30);
      const began = performance.now();
      let slowest = 0;
      const order = [setting.method, ...[...racing].filter((key) => key !== setting.method)];
      for (const key of order) {
        if (mine !== generation) return;
        const wanted = { ...setting, method: key };
        say(found.has(key) ? "computing …" : `compiling ${method(key).name} for the first time …`);
        try {
          const answer = await ask("/race", wanted);
          found.set(key, { ...answer, scale: wanted.scale });
          slowest = Math.max(slowest, answer.seconds.compile);
        } catch (error) {
          say(error instanceof TypeError ? "the lab has stopped; start it again with: fedspam lab" : error.message);
          return;
        }
        if (mine === generation) show();
      }
      if (mine !== generation) return;
      const seconds = (performance.now() - began) / 1000;
      say(slowest > 0.5 ? `ready; compilation took ${number(slowest, 2)} s` : `answered in ${number(seconds, 2)} s`);
      await mapped(mine);
    });
  }

  async function mapped(mine) {
    const key = setting.method;
    if (method(key).kind !== "prox" || !method(key).fresh_weight) return;
    const wanted = { ...setting, ratio: 0.5, fresh_weight: 0.5 };
    const name = JSON.stringify(wanted);
    if (name === planeOf) return;
    try {
      const answer = await ask("/plane", wanted);
      planeOf = name;
      planeMethod = key;
      if (mine === generation) show();
      map.draw({ ...answer, ratio: setting.ratio, fresh_weight: setting.fresh_weight });
    } catch (error) {
      say(error.message);
    }
  }

  const say = (text) => { at("status").textContent = text; };

  // --- showing ---

  const curves = chart(at("chart"), "relative gradient norm of the methods");
  const map = plane(at("map"), data.ratios, data.fresh_weights, (ratio, fresh_weight) => {
    Object.assign(setting, { ratio, fresh_weight });
    for (const slider of SLIDERS) slider.input.value = String(slider.place(setting[slider.key]));
    changed();
  });

  function line(key) {
    const answer = found.get(key);
    const rounds = answer.median.map((_, k) => k);
    const [start, round] = measure === "rounds" ? [0, 1] : answer.prices[measure];
    return { name: method(key).name, number: numberOf(key), x: rounds.map((k) => start + k * round), y: answer.median, low: answer.low, high: answer.high };
  }

  function show() {
    for (const slider of SLIDERS) {
      slider.output.textContent = slider.text();
      slider.row.classList.toggle("idle", !slider.used());
    }
    methods();
    const units = { rounds: "rounds", bytes_up: "up", bytes: "in total" };
    curves.draw({
      x: { label: data.measures[measure], measure, unit: units[measure], log: measure !== "rounds" }, y: { label: "relative gradient norm", log: true },
      lines: [...racing].filter((key) => found.has(key)).map(line),
      empty: racing.size ? "The methods are compiled, which takes some seconds." : "Press a name below to choose a method.",
    });
    map.draw({ ratio: setting.ratio, fresh_weight: setting.fresh_weight });
    const answer = racing.has(setting.method) ? found.get(setting.method) : null;
    const verdict = at("verdict");
    verdict.className = "";
    verdict.textContent = "";
    if (answer && answer.broken) {
      verdict.className = answer.broken.length ? "outside" : "inside";
      verdict.textContent = answer.broken.length ? `outside the theorems: ${answer.broken[0].replace(" in round 0", "").replaceAll("delta", "δ")}` : "inside the theorems";
    }
    at("caption").textContent = `${method(planeMethod).name}: the relative gradient norm after ${data.rounds} rounds. Green: the theorems hold with the paper's constant; dashed: there is a proof of the same rate from the same assumptions. Drag the dot, or move it with the arrow keys.`;
    at("text").textContent = answer ? answer[copied] : racing.size ? "# the program of the first method is here in some seconds" : "# no method is chosen";
  }

  function head() {
    at("brand").prepend(mark());
    at("problem").textContent = `The paper's ridge regression with 100 clients in 20 dimensions. Median of ${data.seeds} seeds; the band is from the lowest to the highest.`;
    at("axis").append(choice("horizontal axis", Object.entries(data.measures).map(([value, label]) => ({ value, label })), measure, (value) => { measure = value; show(); }));
    at("kinds").append(choice("language", [{ value: "python", label: "Python" }, { value: "toml", label: "TOML" }], copied, (value) => { copied = value; show(); }));
    at("copy").querySelector(".code").append(copyButton(() => at("text").textContent));
  }

  head();
  changed();
})();
