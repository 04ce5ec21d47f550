(async function () {
  "use strict";
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  const isNarrow = () => window.matchMedia("(max-width: 720px)").matches;

  // What all plots have in common; colors are variables of the style sheet.
  const axis = {
    gridcolor: "var(--grid)", linecolor: "var(--grid)", tickcolor: "var(--grid)", zeroline: false, automargin: true,
    title: { standoff: 8 },
  };
  const look = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified", bargap: 0,
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 13, color: "var(--ink)" },
    margin: { l: 56, r: 16, t: 8, b: 44 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "var(--muted)", activecolor: "var(--ink)" },
    hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--grid)", font: { color: "var(--ink)" } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
    xaxis: axis, yaxis: axis,
  };

  async function inflated(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  }

  // The same with colors in place of their variables.
  function colored(node) {
    const style = getComputedStyle(root);
    return JSON.parse(JSON.stringify(node).replace(/"var\((--[\w-]+)\)"/g, (_, name) =>
      JSON.stringify(style.getPropertyValue(name).trim())));
  }

  // Milliseconds since 1970 (UTC), or the number itself.
  function place(value) {
    if (typeof value === "number") return value;
    const [day, clock = "00:00"] = value.split(" ");
    const number = Number(value);
    return Number.isNaN(number) ? Date.parse(`${day}T${clock}Z`) : number;
  }

  // The range of what is seen; the given one if there is none.
  function fitted(data, low, high, given) {
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
    if (!(most > least)) return given;
    const margin = 0.05 * (most - least);
    return [least - margin, most + margin];
  }

  // Traces of a plot in levels of detail: the finest ones that know the whole range and are not too many in it, and the
  // coarsest on both sides, so that the slider shows the whole run.
  function detailed(data, levels, low, high) {
    const starts = levels.map((_, k) => (k ? levels[k - 1].traces : 0));
    const fits = (level, k) => {
      if (low < level.from || low > level.to) return false;
      const seen = data[starts[k]].x.filter((x) => x >= low && x <= high).length;
      return seen > 0 && seen <= level.most;
    };
    const chosen = levels.findLastIndex(fits);
    if (chosen < 1) return data;
    const level = levels[chosen];
    const pad = (high - low) / 2;
    const [first, last] = [Math.max(low - pad, level.from), Math.min(high + pad, level.to)];
    const part = (trace, isKept) => {
      const kept = [...trace.x.keys()].filter((k) => isKept(trace.x[k]));
      return { ...trace, x: kept.map((k) => trace.x[k]), y: kept.map((k) => trace.y[k]) };
    };
    const coarse = data.slice(0, levels[0].traces).map((trace) => ({ ...trace, showlegend: false }));
    return [
      ...coarse.map((trace) => part(trace, (x) => x < first)),
      ...coarse.map((trace) => part(trace, (x) => x > last)),
      ...data.slice(starts[chosen], level.traces)
        .map((trace) => ({ ...part(trace, (x) => x >= first && x <= last), visible: true })),
      ...data.slice(levels.at(-1).traces),
    ];
  }

  try {
    if (!("DecompressionStream" in window)) throw new Error("a browser of 2023 or later is needed");
    const script = document.createElement("script");
    script.textContent = await inflated("plotly-gz");
    document.head.append(script);
    const { extent, figures } = JSON.parse(await inflated("figures-gz"));
    let shown = {};  // figures in the colors of the day
    let isBusy = false;

    async function zoom(range) {
      isBusy = true;
      const [low, high] = (range || extent).map(place);
      for (const [id, { data, layout }] of Object.entries(shown)) {
        if (!layout.meta.is_over_time) continue;
        if (!layout.meta.levels) {
          await window.Plotly.relayout(id, { "xaxis.range": [low, high] });
          continue;
        }
        const seen = detailed(data, layout.meta.levels, low, high);
        const next = structuredClone(layout);
        next.dragmode = byId(id).layout.dragmode;
        next.xaxis.range = [low, high];
        if (range !== null) next.yaxis.range = fitted(seen, low, high, layout.yaxis.range);
        await window.Plotly.react(id, seen, next);
      }
      root.dataset.range = JSON.stringify([low, high]);
      isBusy = false;
    }

    async function draw() {
      shown = colored(figures);
      for (const [id, { data, layout }] of Object.entries(shown)) {
        const { is_over_time, levels, height } = layout.meta;
        layout.template = { layout: colored(look) };
        if (is_over_time) layout.xaxis.range = extent.slice();
        if (levels) layout.xaxis.rangeslider.range = extent.slice();
        const named = data.filter((trace) => trace.showlegend !== false && trace.visible !== false).length;
        layout.height = height || (isNarrow() ? 290 + 15 * named : levels ? 460 : 320);
        if (isNarrow()) Object.assign(layout, { margin: { ...look.margin, l: 44, r: 6 }, font: { size: 11 } });
        if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;  // so that the page scrolls
        // Plotly writes into what it is given.
        await window.Plotly.newPlot(id, data.map((trace) => ({ ...trace })), structuredClone(layout), {
          responsive: true, displayModeBar: isNarrow() ? false : "hover", displaylogo: false, scrollZoom: false,
          doubleClick: "reset", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], plotlyServerURL: "",
          toImageButtonOptions: { format: "svg", filename: id },
        });
        if (!is_over_time) continue;
        byId(id).removeAllListeners("plotly_relayout");
        byId(id).on("plotly_relayout", (event) => {
          const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
          if (isBusy) return;
          if (event["xaxis.autorange"]) zoom(null);
          else if (range[0] !== undefined) zoom(range.every((end, k) => place(end) === extent[k]) ? null : range);
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
    root.dataset.drawn = String(Object.keys(shown).length);
  } catch (error) {
    byId("notice").textContent = `The plots could not be drawn: ${error.message}. All tables are below.`;
    root.dataset.failed = String(error);
  }
})();
