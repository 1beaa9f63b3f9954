"use strict";
// The tables of the report. They scroll by themselves on narrow screens; long ones show their first rows until asked for all.
fedspam.tables = (data, numberOf) => {
  const { amount, copyButton, element, number, range, swatch } = fedspam;
  const FIRST = 24; // rows of a long table
  const MOST_CLASSES = 20; // of a confusion matrix
  const isOf = (series, measure) => series.only === null || series.only.includes(measure); // drawn against this axis
  const nameCell = (name, more = null) => element("td", {}, element("span", { class: "name-cell" }, swatch(Math.max(0, numberOf(name))), element("span", {}, name)), more);

  /** A table. `head`: labels of columns; `fill(all)`: its rows, of which there may be `count`. */
  function table(name, head, count, fill, kind = "") {
    const body = element("tbody");
    const made = element("table", { class: kind }, head.length ? element("thead", {}, element("tr", {}, ...head.map((label) => element("th", { scope: "col" }, label)))) : null, body);
    const whole = element("div", {}, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, made));
    const long = count > FIRST + 6;
    if (long) {
      const more = element("button", { type: "button", class: "more" }, `Show all ${count}`);
      more.addEventListener("click", () => { more.remove(); body.replaceChildren(...fill(true)); });
      whole.append(more);
    }
    body.append(...fill(!long));
    return whole;
  }

  const cut = (rows, all) => (all ? rows : rows.slice(0, FIRST));

  // --- final numbers ---

  /** What is known of a series at its end: columns by label, and whether more is better. */
  function atTheEnd(series, measures = Object.keys(data.measures)) {
    const found = new Map();
    const shown = data.metrics.filter(({ name }) => name in series.metrics && !/, (mean over clients|root mean square)$/.test(name));
    for (const { name, rises } of [...shown.filter((one) => one.rises), ...shown.filter((one) => !one.rises)]) {
      found.set(name, { value: series.metrics[name].value.at(-1) ?? null, rises, text: number });
    }
    const { scores } = data.sources[series.source].tested;
    const scored = Object.entries(scores).map(([name, value]) => [name, { value, rises: data.rising.includes(name), text: number }]);
    const accuracies = [...found].filter(([, { rises }]) => rises);
    const costs = Object.entries(series.paid).filter(([measure]) => measures.includes(measure)).map(([measure, paid]) => [data.measures[measure],
      { value: paid.amount.at(-1), rises: null, text: (value) => amount(value, measure) }]);
    return new Map([...accuracies, ...scored, ...[...found].filter(([, { rises }]) => !rises), ...costs]);
  }

  function finalNumbers(opening) {
    // a comparison may draw a method with another setting on each axis: the numbers are those of the curves on show
    const several = data.series.some((series) => series.only !== null);
    const note = element("p", { class: "lead" });
    const host = element("div");
    const show = (measure) => {
      note.textContent = `Every method with its setting for the axis below: ${data.measures[measure]}.`;
      host.replaceChildren(finalTable(opening, measure));
    };
    show("rounds");
    if (several) document.addEventListener("measure", ({ detail }) => show(detail));
    return element("section", { class: "card", id: "final" }, element("h2", {}, "At the end"), several ? note : null, host);
  }

  function finalTable(opening, measure) {
    const chosen = new Map();
    for (const series of data.series) {
      if (!chosen.has(series.name) || isOf(series, measure)) chosen.set(series.name, series);
    }
    const rows = [...chosen.values()].map((series) => ({ series, end: atTheEnd(series, ["rounds", "bytes", "seconds"]) }));
    const columns = [...new Set(rows.flatMap(({ end }) => [...end.keys()]))];
    // a run that went wrong is not the best, whatever its numbers are
    const fine = rows.filter(({ series }) => data.sources[series.source].look !== "stopped");
    const values = (column) => fine.map(({ end }) => end.get(column)?.value ?? null).filter((value) => value !== null);
    const best = new Map(columns.map((column) => {
      const known = rows.map(({ end }) => end.get(column)).find(Boolean);
      const all = values(column);
      return [column, known.rises === null || all.length < 2 ? null : range(all)[known.rises ? 1 : 0]];
    }));
    const rank = ({ end }) => { const cell = end.get(opening); return cell?.value == null ? Infinity : cell.rises ? -cell.value : cell.value; };
    const ordered = rows.length > FIRST + 6 ? [...rows].sort((a, b) => rank(a) - rank(b)) : rows;
    const early = data.sources.some(({ completed }) => !completed);
    const row = ({ series, end }) => {
      const { status, completed, look } = data.sources[series.source];
      // below the name, where it is seen however many columns there are
      const ended = completed ? null : element("small", { class: `status ${look}` }, status);
      return element("tr", {}, nameCell(series.name, ended), ...columns.map((column) => {
        const cell = end.get(column);
        const wins = cell && look !== "stopped" && cell.value !== null && cell.value === best.get(column);
        return element("td", { class: wins ? "best" : cell ? "" : "none" }, cell ? cell.text(cell.value) : "–");
      }));
    };
    return table("numbers at the end", ["", ...columns], rows.length,
      (all) => cut(ordered, all).map(row), early ? "ended" : "");
  }

  // --- costs ---

  function targets(first) {
    if (!data.targets.length) return null;
    const known = [...new Set(data.targets.map(({ metric }) => metric))];
    const measures = Object.keys(data.measures).filter((measure) => data.targets.some(({ rows }) => rows.some(([, paid]) => measure in paid)));
    const host = element("div");
    const show = (metric) => {
      const groups = data.targets.filter((group) => group.metric === metric);
      const count = Math.max(...groups.map(({ rows }) => rows.length));
      host.replaceChildren(table("cost to reach a target", ["", ...measures.map((measure) => data.measures[measure])], count,
        (all) => groups.flatMap((group) => targetRows(group, measures, all))));
    };
    show(known.includes(first) ? first : known[0]);
    document.addEventListener("metric", ({ detail }) => { if (known.includes(detail)) show(detail); });
    return element("section", { class: "card", id: "targets" }, element("h2", {}, "Cost to reach a target"),
      element("p", { class: "lead" }, "A run arrives at the first value at the target from which ten values are there in mean square."), host);
  }

  function targetRows({ metric, target, rows }, measures, all) {
    const cost = ([, paid], measure) => [paid[measure] ?? null].flat()[0];
    const least = new Map(measures.map((measure) => [measure, range(rows.map((row) => cost(row, measure)).filter((value) => value !== null))[0]]));
    const ordered = all ? rows : [...rows].sort((a, b) => (cost(a, measures[0]) ?? Infinity) - (cost(b, measures[0]) ?? Infinity));
    const { rises } = data.metrics.find(({ name }) => name === metric) ?? {};
    const title = element("tr", { class: "group" }, element("td", { colspan: measures.length + 1 }, `until ${metric} ${rises ? "≥" : "≤"} ${number(target, 12)}`));
    return [title, ...cut(ordered, all).map((row) => element("tr", {}, nameCell(row[0]), ...measures.map((measure) => {
      const [paid, low, high] = [row[1][measure] ?? null].flat();
      // a band that ends at infinity: some seeds did not arrive
      const around = low != null && low !== high ? element("small", {}, ` [${amount(low, measure)}, ${high === null ? "∞" : amount(high, measure)}]`) : null;
      const kind = paid === null ? "none" : rows.length > 1 && paid === least.get(measure) ? "best" : "";
      return element("td", { class: kind }, paid === null ? (measure in row[1] ? "not reached" : "–") : amount(paid, measure), around);
    })))];
  }

  // --- every client, and the confusion of classes ---

  function tested() {
    const known = data.sources.filter(({ tested: { clients, confusion } }) => clients.length || confusion.length);
    if (!known.length) return null;
    const host = element("div", { class: "pair" });
    const show = ({ tested: { columns, clients, confusion, classes } }) => {
      host.replaceChildren();
      if (clients.length) host.append(element("div", {}, element("h3", {}, "Each client, worst first"), clientTable(columns, clients)));
      if (confusion.length && confusion.length <= MOST_CLASSES) host.append(element("div", {}, element("h3", {}, "True classes (rows) and predicted ones (columns)"), matrix(confusion, classes)));
    };
    const card = element("section", { class: "card", id: "tested" }, element("h2", {}, "On the test rows"));
    if (known.length > 1) {
      const select = element("select", { "aria-label": "run" }, ...known.map(({ folder }, i) => element("option", { value: i }, folder)));
      select.addEventListener("change", () => show(known[Number(select.value)]));
      card.append(element("div", { class: "bar" }, element("span", { class: "name" }, "run"), select));
    }
    show(known[0]);
    card.append(host);
    return card;
  }

  function clientTable(columns, clients) {
    const judge = columns.findIndex((name) => name === "accuracy" || name === "mean_square");
    const bad = (row) => (row[judge] == null ? Infinity : columns[judge] === "accuracy" ? row[judge] : -row[judge]);
    const ordered = judge < 0 ? clients : [...clients].sort((a, b) => bad(a) - bad(b));
    const labels = new Map([["client", ""], ["f1", "F1"]]); // a plain object would know "constructor", too
    const label = (name) => labels.get(name) ?? name.replaceAll("_", " ");
    const cell = (value) => element("td", { class: value === null ? "none" : "" }, typeof value === "string" ? value : number(value));
    return table("clients", columns.map(label), clients.length, (all) => cut(ordered, all).map((row) => element("tr", {}, ...row.map(cell))));
  }

  function matrix(confusion, classes) {
    const name = (i) => classes[i] ?? String(i);
    return table("confusion matrix", ["", ...confusion.map((_, i) => name(i))], confusion.length, () => confusion.map((row, i) => {
      const sum = row.reduce((a, b) => a + b, 0) || 1;
      return element("tr", {}, element("th", { scope: "row" }, name(i)), ...row.map((count, j) => {
        const cell = element("td", { class: "count" }, String(count));
        const hue = i === j ? "--good" : "--bad";
        cell.style.background = `color-mix(in srgb, var(${hue}) ${Math.round((45 * count) / sum)}%, transparent)`;
        return cell;
      }));
    }), "confusion");
  }

  // --- what was run: folded, and made when it is opened ---

  function folded(id, title, note, make) {
    const made = element("details", { class: "card", id }, element("summary", {}, title, element("small", {}, note)));
    made.addEventListener("toggle", () => { if (made.childElementCount === 1) made.append(...make()); });
    return made;
  }

  function facts(title, note, rows, id) {
    if (!rows.length) return null;
    const several = data.sources.length > 1;
    const value = (text, columns = 1) => element("td", { colspan: columns }, text ?? "–");
    const row = ({ name, values, differs }) => element("tr", { class: several && differs ? "differs" : "" }, element("td", {}, name),
      ...(differs ? values.map((text) => value(text)) : [value(values[0], data.sources.length)]));
    const head = several ? ["", ...data.sources.map(({ folder }) => folder)] : [];
    return folded(id, title, note, () => [table(title, head, 0, () => rows.map(row), several ? "facts several" : "facts")]);
  }

  function again() {
    const step = ({ what, code }) => [element("p", { class: "step" }, what), element("div", { class: "code" }, element("pre", { tabindex: "0" }, code), copyButton(code))];
    const steps = () => {
      const [first, ...others] = data.sources.map((source) => source.again.map((one) => JSON.stringify(one)));
      // steps that all folders share are shown once
      const same = others.length ? first.findIndex((one, i) => others.some((other) => other[i] !== one)) : -1;
      const common = same < 0 ? first.length : same;
      const own = (source) => {
        const rest = source.again.slice(common);
        return [data.sources.length > 1 && rest.length ? element("h3", { class: "step" }, source.folder) : null, ...rest.flatMap(step)].filter(Boolean);
      };
      return [...first.slice(0, common).flatMap((one) => step(JSON.parse(one))), ...data.sources.flatMap(own)];
    };
    return folded("again", "Run it again", "versions, configuration and command to copy", steps);
  }

  return { again, atTheEnd, facts, finalNumbers, isOf, table, targets, tested };
};
