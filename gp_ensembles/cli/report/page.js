(async function () {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  const narrow = () => window.matchMedia("(max-width: 720px)").matches;

  async function inflated(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  }

  // Long lists of numbers stand once in the file; colors are variables of the style sheet.
  function resolved(node, arrays, style) {
    if (typeof node === "string") {
      return node.startsWith("var(--") ? style.getPropertyValue(node.slice(4, -1)).trim() : node;
    }
    if (Array.isArray(node)) return node.map((part) => resolved(part, arrays, style));
    if (node === null || typeof node !== "object") return node;
    if ("array" in node) return arrays[node.array];
    return Object.fromEntries(Object.entries(node).map(([key, part]) => [key, resolved(part, arrays, style)]));
  }

  // Milliseconds since 1970 (UTC), or the number itself.
  function place(value) {
    if (typeof value === "number") return value;
    const [day, clock = "00:00"] = value.split(" ");
    const number = Number(value);
    return Number.isNaN(number) ? Date.parse(`${day}T${clock}Z`) : number;
  }

  function fitted(data, low, high, start) {
    let least = Infinity, most = -Infinity;
    for (const trace of data) {
      if (trace.visible === false || trace.visible === "legendonly" || trace.yaxis === "y2") continue;
      for (let k = 0; k < trace.x.length; k++) {
        const value = trace.y[k];
        if (value === null || trace.x[k] < low || trace.x[k] > high) continue;
        least = Math.min(least, value);
        most = Math.max(most, value);
      }
    }
    if (!(most > least)) return start;
    const margin = 0.05 * (most - least);
    return [least - margin, most + margin];
  }

  try {
    if (!("DecompressionStream" in window)) throw new Error("a browser of 2023 or later is needed");
    const script = document.createElement("script");
    script.textContent = await inflated("plotly-gz");
    document.head.append(script);
    const { arrays, extent, figures } = JSON.parse(await inflated("figures-gz"));
    const plots = new Map();
    let isBusy = false;

    // The finest traces that know the whole range and are not too many in it.
    function levelFor(figure, low, high) {
      const fits = (level) => {
        if (low < level.from || low > level.to) return false;
        const seen = figure.data[level.traces[0]].x.filter((x) => x >= low && x <= high).length;
        return seen > 0 && seen <= level.most;
      };
      for (let k = figure.levels.length - 1; k > 0; k--) if (fits(figure.levels[k])) return k;
      return 0;
    }

    // Traces of a level around what is seen, with the coarsest ones on both sides, so that the slider shows the whole run.
    function dataFor(figure, chosen, low, high) {
      const { data } = figure;
      if (chosen === 0) return data;
      const level = figure.levels[chosen];
      const pad = (high - low) / 2;
      const [first, last] = [Math.max(low - pad, level.from), Math.min(high + pad, level.to)];
      const part = (trace, isKept) => {
        const kept = [...trace.x.keys()].filter((k) => isKept(trace.x[k]));
        return { ...trace, x: kept.map((k) => trace.x[k]), y: kept.map((k) => trace.y[k]) };
      };
      const coarse = figure.levels[0].traces.map((k) => ({ ...data[k], showlegend: false }));
      const ends = figure.levels.at(-1).traces.at(-1) + 1;
      return [
        ...coarse.map((trace) => part(trace, (x) => x < first)),
        ...coarse.map((trace) => part(trace, (x) => x > last)),
        ...level.traces.map((k) => ({ ...part(data[k], (x) => x >= first && x <= last), visible: true })),
        ...data.slice(ends),
      ];
    }

    async function zoom(range) {
      isBusy = true;
      try {
        const [low, high] = (range || extent).map(place);
        for (const [id, plot] of plots) {
          const figure = figures[id];
          if (figure.group !== "time") continue;
          if (!figure.levels) {
            await window.Plotly.relayout(plot, { "xaxis.range": [low, high] });
            continue;
          }
          const data = dataFor(figure, levelFor(figure, low, high), low, high);
          const { xaxis, yaxis } = figure.layout;
          const height = range === null ? yaxis.range : fitted(data, low, high, yaxis.range);
          await window.Plotly.react(plot, data, {
            ...structuredClone(figure.layout), dragmode: plot.layout.dragmode,
            xaxis: { ...xaxis, range: [low, high] }, yaxis: { ...yaxis, range: height },
          });
        }
        root.dataset.range = JSON.stringify([low, high]);
      } finally {
        isBusy = false;
      }
    }

    // From the file's figures, so that other colors can be taken later.
    const raw = JSON.stringify(figures);

    async function draw() {
      const style = getComputedStyle(root);
      Object.assign(figures, resolved(JSON.parse(raw), arrays, style));
      for (const [id, figure] of Object.entries(figures)) {
        const plot = byId(id);
        const { data, layout } = figure;
        if (figure.group === "time") layout.xaxis.range = extent.slice();
        if (layout.xaxis.rangeslider) layout.xaxis.rangeslider.range = extent.slice();
        const named = data.filter((trace) => trace.showlegend !== false && trace.visible !== false).length;
        layout.height = figure.height || (narrow() ? 290 + 15 * named : figure.levels ? 460 : 320);
        if (narrow()) {
          layout.margin = { ...layout.margin, l: 44, r: 6 };
          layout.font = { ...layout.font, size: 11 };
        }
        if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;  // so that the page scrolls
        // Plotly writes into what it is given.
        await window.Plotly.newPlot(plot, data.map((trace) => ({ ...trace })), structuredClone(layout), {
          responsive: true, displayModeBar: narrow() ? false : "hover", displaylogo: false, scrollZoom: false,
          doubleClick: "reset", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], plotlyServerURL: "",
          toImageButtonOptions: { format: "svg", filename: id },
        });
        plots.set(id, plot);
        if (figure.group !== "time") continue;
        plot.removeAllListeners("plotly_relayout");
        plot.on("plotly_relayout", (event) => {
          if (isBusy) return;
          if (event["xaxis.autorange"]) zoom(null);
          else if (event["xaxis.range"]) zoom(event["xaxis.range"]);
          else if ("xaxis.range[0]" in event) {
            const range = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
            const isWhole = range.every((end, k) => place(end) === extent[k]);
            zoom(isWhole ? null : range);
          }
        });
      }
    }

    await draw();
    for (const button of document.querySelectorAll("button[data-from]")) {
      button.addEventListener("click", () => {
        const { from, to } = button.dataset;
        zoom(from === "" ? null : [Number(from), Number(to)]);
        if (!button.closest("#predictions")) byId("predictions").scrollIntoView({ behavior: "smooth" });
      });
    }
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    root.dataset.drawn = String(plots.size);
  } catch (error) {
    byId("notice").textContent = `The plots could not be drawn: ${error.message}. All tables are below.`;
    root.dataset.failed = String(error);
  }
})();
