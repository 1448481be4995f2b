// Entry point.

window.upwash = { charts, runs };
if (isLive) live(); else build();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (runs.length) build(); });
matchMedia("print").addEventListener("change", () => charts.forEach((entry) => { draw(entry); entry.instance?.resize(); }));
addEventListener("beforeprint", () => {
  drawSome(Infinity);
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
});
