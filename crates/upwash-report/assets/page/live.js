// A run that goes on: a whole view first, then what is new.
const live = () => {
  const bar = document.getElementById("live");
  bar.hidden = false;
  const [done, state, said] = ["done", "state", "said"].map((id) => document.getElementById(id));
  const buttons = ["pause", "checkpoint", "stop"].map((id) => document.getElementById(id));
  const [pause, checkpoint, stop] = buttons;
  let [liveStatus, refused, connected, waits] = [{}, "", false, []];
  const span = (seconds) => {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  };
  const mayGoOn = (run) => run.ending?.status === "interrupted";
  const status = () => {
    const run = runs[0];
    if (!run) { state.textContent = connected ? ["The run has not begun yet.", ...waits].join(" ") : "Not connected."; said.textContent = refused; return; }
    const part = run.rounds ? run.rounds_run / run.rounds : 0;
    done.style.width = `${100 * part}%`;
    done.parentElement.setAttribute("aria-valuenow", Math.floor(100 * part));
    const words = [`round ${run.rounds_run.toLocaleString("en")} of ${run.rounds.toLocaleString("en")}`];
    words.push(`epoch ${Math.floor(run.rounds_run / run.rounds_per_epoch)} of ${Math.round(run.rounds / run.rounds_per_epoch)}`);
    if (run.ending) words.push(ended(run));
    else if (run.now.paused) words.push("paused");
    else if (liveStatus.pace) words.push(`${short(liveStatus.pace)} rounds a second`, `${span((run.rounds - run.rounds_run) / liveStatus.pace)} left`);
    const loss = mean(run.now.losses);
    if (loss !== null) words.push(`mean loss ${short(loss)}`);
    state.textContent = words.join(" · ");
    document.title = `${Math.floor(100 * part)} % · ${run.name} · Upwash`;
    buttons.forEach((button) => { button.disabled = Boolean(run.ending) || !connected; });
    pause.textContent = run.now.paused ? "Continue" : "Pause";
    let news = run.now.checkpoint === null ? "" : `Checkpoint written before round ${run.now.checkpoint.toLocaleString("en")}.`;
    if (run.now.stopping && !run.ending) news = "Stopping.";
    if (liveStatus.waiting && !run.ending) news = "Asked; the run will see it after its round.";
    if (liveStatus.silent && !run.ending && !run.now.paused) news = "Nothing has been heard of the run for a while: it is in a long round, or it was killed." + (liveStatus.cut ? " The last line of its events is cut." : "");
    if (!connected) news = run.ending ? (mayGoOn(run) ? "When the run goes on at this address, so does this page." : "") : "Not connected: trying again.";
    said.textContent = refused || news;
  };
  const overlay = () => {
    const run = runs[0];
    const words = document.getElementById("words-0");
    if (!run || !words) return;
    words.textContent = "";
    if (!goesOn(run) || !run.now.links) return;
    const round = (run.rounds_run - 1).toLocaleString("en");
    words.textContent = run.now.links.length ? `Bright: the ${run.now.links.length} links over which models went in round ${round}; those of other copies are ${isDark() ? "white" : "black"}. ` : `No models were sent in round ${round}. `;
    if (!run.now.leaders.some(Boolean)) return;
    leaderNames(run).forEach((name, which) => {
      const followers = new Map();
      run.now.leaders.forEach((pair, worker) => { if (pair && pair[which] !== worker) followers.set(pair[which], (followers.get(pair[which]) || 0) + 1); });
      const most = [...followers].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([leader, count]) => `${leader} leads ${count} other${count > 1 ? "s" : ""}`);
      const swatch = make("span", words, which ? " ⇢ " : " → ");
      swatch.style.color = LEADERS[which];
      swatch.style.fontWeight = "bold";
      words.append(`${name}: ${most.join(", ") || "everyone its own"}.`);
    });
  };
  let [timer, changed, took] = [null, new Set(), 0];
  const flush = () => {
    timer = null;
    const began = performance.now();
    if (changed.has("all")) build();
    else {
      const late = charts.filter((entry) => changed.has(entry.changes)).filter((entry) => !refresh(entry) && entry.instance);
      if (late.length) setTimeout(() => later(...late.map((entry) => entry.changes)), 500);
      if (changed.has("epochs")) fillTable(document.getElementById("table"));
      if (changed.has("notices")) fillNotices(document.getElementById("notices"));
    }
    changed = new Set();
    overlay();
    took = performance.now() - began;
  };
  const later = (...what) => {
    what.forEach((kind) => changed.add(kind));
    // Never more than a fifth of the time is spent on drawing.
    if (!timer) timer = setTimeout(flush, changed.has("all") ? 0 : Math.max(200, 4 * took));
  };
  const add = (old, rows, key) => {
    let news = false;
    rows.forEach((row) => {
      const place = old.findLastIndex((known) => known[key] <= row[key]);
      const there = place >= 0 && old[place][key] === row[key];
      if (there && JSON.stringify(old[place]) === JSON.stringify(row)) return;
      old.splice(there ? place : place + 1, there ? 1 : 0, row);
      news = true;
    });
    return news;
  };
  const heard = {
    wait: (message) => { runs = []; waits = message.notices; },
    view: (run) => {
      // Most often the same run, with fewer points: charts stay as someone has arranged them.
      if (runs[0] && shape(runs[0]) === shape(run)) {
        Object.assign(runs[0], run);
        later("epochs", "rounds", "notices");
      } else {
        runs = [run];
        later("all");
      }
    },
    more: (more) => {
      const run = runs[0];
      if (!run) return;
      if (add(run.epochs, more.epochs, "epoch") || JSON.stringify(run.ends) !== JSON.stringify(more.ends)) later("epochs", "rounds");
      if (add(run.batches, more.batches, "round") || more.rounds_run !== run.rounds_run) later("rounds");
      if (Boolean(more.ending) !== Boolean(run.ending)) later("epochs", "rounds");
      if (JSON.stringify(more.notices) !== JSON.stringify(run.notices)) later("notices");
      ["rounds_run", "ends", "averaged_accuracy", "notices", "now", "ending"].forEach((key) => { run[key] = more[key]; });
    },
  };
  const shape = (run) => JSON.stringify([run.algorithm, run.graph_name, run.workers, run.graph]);
  const connect = () => {
    const address = `events${location.search}`;
    const source = new EventSource(address);
    Object.entries(heard).forEach(([name, hear]) => source.addEventListener(name, (event) => {
      if (!connected) refused = "";
      connected = true;
      const message = JSON.parse(event.data);
      if (message.live_status) liveStatus = message.live_status;
      hear(message);
      status();
    }));
    source.addEventListener("error", async () => {
      connected = false;
      // Whoever showed a run that is over is most likely gone with it. One that was stopped may go on there.
      if (runs[0]?.ending) {
        source.close();
        if (mayGoOn(runs[0])) setTimeout(connect, 5000);
      } else if (source.readyState === EventSource.CLOSED) {
        // A browser does not try again when it was refused: it may be let in later.
        const waiting = new AbortController();
        try {
          const answer = await fetch(address, { signal: waiting.signal });
          refused = answer.ok ? "" : await answer.text();
        } catch { refused = ""; }
        waiting.abort();
        setTimeout(connect, 5000);
      }
      status();
    });
  };
  connect();
  const ask = async (what) => {
    refused = "";
    try {
      const answer = await fetch(`control/${what}${location.search}`, { method: "POST", headers: { "x-upwash": "control" } });
      if (!answer.ok) refused = await answer.text();
    } catch (error) {
      refused = `Not asked: ${error.message}`;
    }
    status();
  };
  pause.addEventListener("click", () => ask(runs[0]?.now.paused ? "continue" : "pause"));
  checkpoint.addEventListener("click", () => ask("checkpoint"));
  stop.addEventListener("click", () => ask("stop"));
  status();
};
