// A dialog with text that is asked for: the last lines of a rank, or a report.

const REFRESH_MS = 2000;

let shown = 0;  // Counts what the dialog has been opened for; 0 is never shown.

async function ask(path, parameters) {
  // Not relative: the page's own address may have a user name and a token, which fetch() refuses.
  const folder = location.origin + location.pathname.replace(/[^/]*$/, '');
  const answer = await fetch(`${folder}${path}?${new URLSearchParams(parameters)}`);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer;
}

// Other text, unless somebody selects some of what is there, to copy it.
function isToBeReplaced(body, parts) {
  const selection = getSelection();
  if (!selection.isCollapsed && selection.containsNode(body, true)) return false;
  return body.textContent !== parts.map(part => part.textContent).join('');
}

// Shows what `fill` gives, and asks again while it is open: the next time only when the last answer has come.
function openDialog(title, fill) {
  const dialog = document.getElementById('text');
  const body = document.getElementById('text-body');
  const number = ++shown;
  const isShown = () => dialog.open && shown === number;
  setText(document.getElementById('text-title'), title);
  body.replaceChildren(element('p', {}, 'asking …'));
  const again = () => setTimeout(() => isShown() && update(), REFRESH_MS);
  const update = async () => {
    let parts;
    try {
      parts = await fill();
    } catch (error) {
      parts = [element('p', {}, error.message || 'The node does not answer.')];
    }
    if (!isShown()) return;
    if (!isToBeReplaced(body, parts)) return again();
    const isAtEnd = body.scrollTop + body.clientHeight >= body.scrollHeight - 4;
    body.replaceChildren(...parts);
    if (isAtEnd) body.scrollTop = body.scrollHeight;
    again();
  };
  if (!dialog.open) dialog.showModal();
  update();
}

function openOutput(jobId, cell) {
  if (cell.rank < 0) return;
  openDialog(`Rank ${cell.rank} on ${cell.node.host}: last lines`, async () => {
    const {out, err} = await (await ask('output', {job: jobId, rank: cell.rank})).json();
    const parts = [];
    for (const [name, text] of [['Standard output', out], ['Standard error', err]]) {
      if (text) parts.push(element('h3', {}, name), element('pre', {}, text));
    }
    return parts.length > 0 ? parts : [element('p', {}, 'It has written nothing yet.')];
  });
}

function openFailure(jobId, report) {
  openDialog('First failure', async () => [element('pre', {}, report || await (await ask('failure', {job: jobId})).text())]);
}
