// The live page of a run: receives the whole run first, then increments.
const live = () => {
  const bar = document.getElementById("live");
  bar.hidden = false;
  const [done, state, feedback] = ["done", "state", "feedback"].map((id) => document.getElementById(id));
  const buttons = ["pause", "checkpoint", "stop"].map((id) => document.getElementById(id));
  const [pause, checkpoint, stop] = buttons;
  let [liveStatus, refused, connected, startNotices] = [{}, "", false, []];
  const canResume = (run) => run.ending?.status === "interrupted";
  const status = () => {
    const run = runs[0];
    if (!run) { state.textContent = connected ? ["The run has not started yet.", ...startNotices].join(" ") : "Not connected."; feedback.textContent = refused; return; }
    const fraction = run.rounds ? run.rounds_run / run.rounds : 0;
    done.style.width = `${100 * fraction}%`;
    done.parentElement.setAttribute("aria-valuenow", Math.floor(100 * fraction));
    const details = [`round ${run.rounds_run.toLocaleString("en")} of ${run.rounds.toLocaleString("en")}`];
    details.push(`epoch ${Math.floor(run.rounds_run / run.rounds_per_epoch)} of ${Math.round(run.rounds / run.rounds_per_epoch)}`);
    if (run.ending) details.push(ended(run));
    else if (run.now.paused) details.push("paused");
    else if (liveStatus.pace) details.push(`${short(liveStatus.pace)} rounds/s`, `${span((run.rounds - run.rounds_run) / liveStatus.pace)} left`);
    const loss = mean(run.now.losses);
    if (loss !== null) details.push(`mean loss ${short(loss)}`);
    if (mean(run.ends) !== null) details.push(`test accuracy ${percent(mean(run.ends))}, worst worker ${percent(worst(run.ends))}`);
    state.textContent = details.join(" · ");
    document.title = `${Math.floor(100 * fraction)} % · ${run.name} · Upwash`;
    buttons.forEach((button) => { button.disabled = Boolean(run.ending) || !connected; });
    pause.textContent = run.now.paused ? "Continue" : "Pause";
    let text = run.now.checkpoint === null ? "" : `Checkpoint written before round ${run.now.checkpoint.toLocaleString("en")}.`;
    if (run.now.stopping && !run.ending) text = "Stopping.";
    if (liveStatus.waiting && !run.ending) text = "Request sent. The run handles it after the current round.";
    if (liveStatus.silent && !run.ending && !run.now.paused) text = "The run has not written events for a while: it is in a long round, or it was killed." + (liveStatus.cut ? " The last line of its events is incomplete." : "");
    if (!connected) text = run.ending ? (canResume(run) ? "This page continues when the run is resumed at this address." : "") : "Connection lost. Reconnecting.";
    feedback.textContent = refused || text;
  };
  const overlay = () => {
    const run = runs[0];
    const caption = document.getElementById("caption-0");
    if (!run || !caption) return;
    caption.textContent = "";
    if (!isRunning(run) || !run.now.links) return;
    const round = (run.rounds_run - 1).toLocaleString("en");
    caption.textContent = run.now.links.length ? `Highlighted: the ${run.now.links.length} links used in round ${round}; links of other copies are ${isDark() ? "white" : "black"}. ` : `No models were sent in round ${round}. `;
    if (!run.now.leaders.some(Boolean)) return;
    leaderNames(run).forEach((name, which) => {
      const swatch = make("span", caption, which ? " ⇢ " : "→ ");
      swatch.style.color = LEADERS[which];
      swatch.style.fontWeight = "bold";
      caption.append(`${name}, `);
    });
    caption.append("with the number of workers that follow.");
  };
  let [timer, changed, took] = [null, new Set(), 0];
  const flush = () => {
    timer = null;
    const began = performance.now();
    ranges.clear();
    if (changed.has("all")) build();
    else {
      const late = charts.filter((entry) => changed.has(entry.changes)).filter((entry) => !refresh(entry) && entry.instance);
      if (late.length) setTimeout(() => schedule(...late.map((entry) => entry.changes)), 500);
      if (changed.has("epochs") || changed.has("rounds")) fillTables();
      if (changed.has("notices")) fillNotices(document.getElementById("notices"));
    }
    changed = new Set();
    overlay();
    took = performance.now() - began;
  };
  const schedule = (...kinds) => {
    kinds.forEach((kind) => changed.add(kind));
    // Drawing takes at most a fifth of the time.
    if (!timer) timer = setTimeout(flush, changed.has("all") ? 0 : Math.max(200, 4 * took));
  };
  const add = (old, rows, key) => {
    let isChanged = false;
    rows.forEach((row) => {
      const index = old.findLastIndex((known) => known[key] <= row[key]);
      const exists = index >= 0 && old[index][key] === row[key];
      if (exists && JSON.stringify(old[index]) === JSON.stringify(row)) return;
      old.splice(exists ? index : index + 1, exists ? 1 : 0, row);
      isChanged = true;
    });
    return isChanged;
  };
  const handlers = {
    wait: (message) => { runs = []; startNotices = message.notices; },
    view: (run) => {
      // Usually this is the same run with fewer points: the charts keep their zoom and hidden lines.
      if (runs[0] && shape(runs[0]) === shape(run)) {
        Object.assign(runs[0], run);
        schedule("epochs", "rounds", "notices");
      } else {
        runs = [run];
        schedule("all");
      }
    },
    more: (more) => {
      const run = runs[0];
      if (!run) return;
      if (add(run.epochs, more.epochs, "epoch") || JSON.stringify(run.ends) !== JSON.stringify(more.ends)) schedule("epochs", "rounds");
      if (add(run.batches, more.batches, "round") || more.rounds_run !== run.rounds_run) schedule("rounds");
      if (Boolean(more.ending) !== Boolean(run.ending)) schedule("epochs", "rounds");
      if (JSON.stringify(more.notices) !== JSON.stringify(run.notices)) schedule("notices");
      ["rounds_run", "ends", "colors", "colors_caption", "averaged_accuracy", "wall_seconds", "notices", "participation", "now", "ending"].forEach((key) => { run[key] = more[key]; });
    },
  };
  const shape = (run) => JSON.stringify([run.algorithm, run.graph_name, run.workers, run.graph]);
  const connect = () => {
    const address = `events${location.search}`;
    const source = new EventSource(address);
    Object.entries(handlers).forEach(([name, handle]) => source.addEventListener(name, (event) => {
      if (!connected) refused = "";
      connected = true;
      const message = JSON.parse(event.data);
      if (message.live_status) liveStatus = message.live_status;
      handle(message);
      status();
    }));
    source.addEventListener("error", async () => {
      connected = false;
      // The server of an ended run has most likely exited with it. A stopped run may be resumed at the same address.
      if (runs[0]?.ending) {
        source.close();
        if (canResume(runs[0])) setTimeout(connect, 5000);
      } else if (source.readyState === EventSource.CLOSED) {
        // A browser does not reconnect after a refusal, but a later attempt may succeed.
        const abort = new AbortController();
        try {
          const answer = await fetch(address, { signal: abort.signal });
          refused = answer.ok ? "" : await answer.text();
        } catch { refused = ""; }
        abort.abort();
        setTimeout(connect, 5000);
      }
      status();
    });
  };
  connect();
  const send = async (request) => {
    refused = "";
    try {
      const answer = await fetch(`control/${request}${location.search}`, { method: "POST", headers: { "x-upwash": "control" } });
      if (!answer.ok) refused = await answer.text();
    } catch (error) {
      refused = `The request could not be sent: ${error.message}`;
    }
    status();
  };
  pause.addEventListener("click", () => send(runs[0]?.now.paused ? "continue" : "pause"));
  checkpoint.addEventListener("click", () => send("checkpoint"));
  stop.addEventListener("click", () => send("stop"));
  status();
};
