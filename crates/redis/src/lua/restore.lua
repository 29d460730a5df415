-- Writes what a move brings, as it was. ARGV: seen, who, count, then each part with its number of arguments and its kind
-- first (see `transfer.rs`).
local function define(o)
  local tenant, hash, flow, number = ARGV[o + 3], ARGV[o + 4], ARGV[o + 5], ARGV[o + 8]
  local key = base .. ':def:' .. tenant .. '/' .. hash
  call('HSET', key, 'flow', flow, 'body', ARGV[o + 6], 'created', ARGV[o + 7], 'number', number)
  if ARGV[o + 9] == '1' then call('HSET', key, 'origin', ARGV[o + 10]) end
  call('ZADD', base .. ':defs:' .. tenant, number, hash)
  call('HSET', base .. ':latest:' .. tenant, flow, hash)
  call('SADD', base .. ':known', tenant .. '/' .. hash)
  stamp = math.max(stamp, tonumber(number))
end

-- A definition that another shard holds: a start looks at its own shard alone.
local function know(o) call('SADD', base .. ':known', ARGV[o + 3] .. '/' .. ARGV[o + 4]) end

local FIELDS = { 'number', 'version', 'status', 'events', 'last', 'created', 'started', 'ended', 'steps', 'failure',
  'trimmed', 'state', 'flow', 'start', 'labels' }
local function restore_run(o)
  local run, definition, jobs = ARGV[o + 3], ARGV[o + 4], tonumber(ARGV[o + 5])
  local key, tenant = base .. ':run:' .. run, match(run, '^[^/]+')
  if call('EXISTS', key) == 1 then return 'E' end
  if call('SISMEMBER', base .. ':known', tenant .. '/' .. definition) == 0 then return 'D' end
  local row, set = {}, { 'jobs', jobs }
  for i, field in ipairs(FIELDS) do
    local value = ARGV[o + 5 + i]
    row[field] = value
    -- What is empty is absent, but for what every run has.
    if value ~= '' or field == 'labels' or field == 'state' then set[#set + 1] = field; set[#set + 1] = value end
  end
  for i = 0, jobs - 1 do
    local at = o + 5 + #FIELDS + i * 15
    local j = { token = ARGV[at + 2], attempt = ARGV[at + 3], lines = ARGV[at + 4], expires = ARGV[at + 5],
      released = ARGV[at + 6], leased = ARGV[at + 7], worker = ARGV[at + 8], number = ARGV[at + 9],
      priority = ARGV[at + 10], due = ARGV[at + 11], held = ARGV[at + 12], name = ARGV[at + 13], queue = ARGV[at + 14],
      need = ARGV[at + 15] }
    index(run, ARGV[at + 1], j)
    set[#set + 1] = 'j' .. ARGV[at + 1]
    set[#set + 1] = render(j)
    stamp = math.max(stamp, tonumber(j.number))
  end
  flows[tenant .. '/' .. row.flow] = true
  for label in string.gmatch(row.labels, '%S+') do
    put(base .. ':label:' .. tenant .. ':' .. label, row.number, match(run, '/(.+)$'))
  end
  local ended = row.ended ~= '' and row.ended
  relist(run, row.flow, row.number, nil, nil, row.status, ended, base .. (row.trimmed ~= '' and ':trimmed' or ':ended'))
  stamp = math.max(stamp, tonumber(row.number))
  spread({ 'HSET', key }, set, 2)
end

local function restore_events(o)
  local run, dates = ARGV[o + 3], tonumber(ARGV[o + 4])
  local key, at, set = base .. ':run:' .. run, o + 4, {}
  if call('EXISTS', key) == 0 then return 'M' end
  for _ = 1, dates do
    local ts, first, count = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    feed(run, ts, first, push(run, ts, first - 1, at + 3, count, 5, set))
    at = at + 3 + count * 5
  end
  if #set > 0 then spread({ 'HSET', key }, set, 2) end
end

local function restore_values(o)
  local owner, count = ARGV[o + 3], tonumber(ARGV[o + 4])
  for i = 0, count - 1 do
    local at = o + 4 + i * 3
    local field, value, expires = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    call('HSET', base .. ':state:' .. owner, field, expires .. ' ' .. tick() .. ' ' .. value)
    if expires ~= '-' then put(base .. ':expiring', expires, owner .. ' ' .. field) end
  end
end

local KINDS = { F = define, K = know, R = restore_run, E = restore_events, V = restore_values }
local refused, o = '', 3
for _ = 1, tonumber(ARGV[3]) do
  refused = KINDS[ARGV[o + 2]](o) or ''
  if refused ~= '' then break end
  o = o + tonumber(ARGV[o + 1])
end
finish(ARGV[2])
return { tostring(n), format('%.0f', us), refused }
