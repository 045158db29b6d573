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

// Calls `show(document)` for each new state, and `tell(text, isLost)` about the connection.
function followFeed(show, tell) {
  const inside = document.getElementById('document').textContent.trim();
  if (inside) {
    tell('as the job ended', false);
    show(JSON.parse(inside));
    return;
  }
  let state = null;
  const connect = () => {
    const source = new EventSource('live');
    source.addEventListener('open', () => tell('live', false));
    source.addEventListener('whole', event => {
      state = JSON.parse(event.data);
      show(state);
    });
    source.addEventListener('change', event => {
      if (state === null) return;
      state = merged(state, JSON.parse(event.data));
      show(state);
    });
    source.addEventListener('error', () => {
      const jobs = state === null ? [] : Object.values(state.jobs);
      const isOver = jobs.length > 0 && jobs.every(job => job.state === 'finished');
      tell(isOver ? 'the job is over' : 'connection lost; trying again', !isOver);
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
    });
  };
  tell('connecting', false);
  connect();
}
