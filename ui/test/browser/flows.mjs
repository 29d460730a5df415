// The flows that the tests run.

export const QUICK = `
flow: quick
steps:
  say: { command: [sh, -c, 'cat; echo hello'], returns: said }
  end: { subscribes: [said], command: [echo, '{"result": {"big": 12345678901234567890, "price": 1.10}}'] }
`;
export const FAILING = `
flow: failing
steps:
  fetch: { command: [echo, '{"result": 1}'], returns: fetched }
  parse: { subscribes: [fetched], command: [sh, -c, "echo reading; echo 'line 17: unexpected end' >&2; exit 3"], returns: parsed }
  load: { subscribes: [parsed], command: ["true"] }
`;
export const APPROVAL = `
flow: approval
accepts: { approval.given: }
steps:
  offer: { command: ["true"] }
  order: { subscribes: [approval.given], command: ["true"] }
`;
export const REMOTE = `
flow: remote
steps:
  write: { worker: letters, returns: letter.written }
`;
export const FORM = `
flow: form
input:
  type: object
  required: [file]
  properties: { file: { type: string, minLength: 3 }, rows: { type: integer, maximum: 10 }, mode: { enum: [full, delta] } }
steps:
  read: { command: [cat] }
`;
export const MACHINE = `
machine: door
initial: closed
events: { open: , close: , lock: }
states:
  closed: { on: { open: { to: opened }, lock: { to: locked, role: guard } } }
  opened: { on: { close: { to: closed } } }
  locked: { final: true }
`;
