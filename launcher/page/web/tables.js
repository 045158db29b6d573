// Tables whose rows change a little from second to second.

// `columns`: [title, class of its cells]. `rows`: lists of texts.
function showTable(id, columns, rows) {
  const table = document.getElementById(id);
  if (!table.tHead) {
    const head = element('tr', {});
    for (const [title, kind] of columns) head.append(element('th', {scope: 'col', class: kind}, title));
    table.append(element('thead', {}, head), element('tbody'));
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.lastChild.remove();
  while (body.rows.length < rows.length) {
    const row = body.insertRow();
    for (const [, kind] of columns) row.append(element('td', {class: kind}));
  }
  rows.forEach((texts, i) => texts.forEach((text, j) => setText(body.rows[i].cells[j], text)));
}

const CHECKPOINT_ROWS = 30;

function checkpointState(checkpoint) {
  if (checkpoint.error) return `✕ not written: ${checkpoint.error}`;
  return checkpoint.published ? '✓ complete' : `… ${count(checkpoint.shares, 'share')} written`;
}

function showCheckpoints(job) {
  const checkpoints = Object.values(job.checkpoints || {}).sort((a, b) => b.written_ms - a.written_ms || b.step - a.step).slice(0, CHECKPOINT_ROWS);
  document.getElementById('saves').hidden = checkpoints.length === 0;
  showTable('checkpoints', [['Step', 'number'], ['Written after', 'number'], ['Size', 'number'], ['Took', 'number'], ['State', 'text']],
    checkpoints.map(each => [number(each.step), shortDuration(each.written_ms), size(each.bytes), duration(each.seconds * 1000), checkpointState(each)]));
}
