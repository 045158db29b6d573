// The document that the page shows (page_document.h), and where it comes from: inside the page, or
// `/live`.

// Applies a JSON Merge Patch (RFC 7396).
function merged(target, patch) {
  if (patch === null || typeof patch !== 'object' || Array.isArray(patch)) return patch;
  const result = target !== null && typeof target === 'object' && !Array.isArray(target) ? target : {};
  for (const [name, value] of Object.entries(patch)) {
    if (name === '__proto__') continue;  // No job may change what all objects inherit.
    if (value === null) delete result[name];
    else result[name] = merged(result[name], value);
  }
  return result;
}

const QUIET_MS = 5000;  // Events come once a second. Nobody else says that a daemon has vanished without a word.
const QUIET_LOOK_MS = 1000;
const RETRY_MS = 3000;

// Calls `show(document)` for each new state, and `tell(text, isLost)` about the connection.
function followFeed(show, tell) {
  const inside = document.getElementById('document').textContent.trim();
  if (inside) {
    tell('as the job ended', false);
    show(JSON.parse(inside));
    return;
  }
  let state = null;
  let source = null;
  let heardAt = 0;  // By the wall clock, which goes on while the machine sleeps.
  const take = next => {
    heardAt = Date.now();
    state = next;
    show(state);
  };
  const lose = retryMs => {
    source.close();
    source = null;
    const jobs = state === null ? [] : Object.values(state.jobs);
    const isOver = jobs.length > 0 && jobs.every(job => job.state === 'finished');
    tell(isOver ? 'the job is over' : 'connection lost; trying again', !isOver);
    setTimeout(connect, retryMs);
  };
  const connect = () => {
    heardAt = Date.now();
    source = new EventSource('live');
    source.addEventListener('open', () => tell('live', false));
    source.addEventListener('whole', event => take(JSON.parse(event.data)));
    source.addEventListener('change', event => {
      if (state !== null) take(merged(state, JSON.parse(event.data)));
    });
    source.addEventListener('error', () => lose(RETRY_MS));
  };
  const look = () => {
    if (source !== null && Date.now() - heardAt >= QUIET_MS) lose(0);
  };
  setInterval(look, QUIET_LOOK_MS);
  document.addEventListener('visibilitychange', look);
  tell('connecting', false);
  connect();
}
