-- Writes what a move brings, as it was. ARGV: seen, who, count, then each part with its number of arguments and its kind
-- first (see `transfer.rs`).
local function define(o)
  local tenant, hash, flow, number = ARGV[o + 3], ARGV[o + 4], ARGV[o + 5], ARGV[o + 8]
  local key = base .. ':def:' .. tenant .. '/' .. hash
  call('HSET', key, 'flow', flow, 'body', ARGV[o + 6], 'created', ARGV[o + 7], 'number', number)
  if ARGV[o + 9] == '1' then call('HSET', key, 'origin', ARGV[o + 10]) end
  call('ZADD', base .. ':defs:' .. tenant, number, hash)
  if ARGV[o + 11] == '1' then call('HSET', base .. ':latest:' .. tenant, flow, hash) end
  call('SADD', base .. ':known', tenant .. '/' .. hash)
  stamp = math.max(stamp, tonumber(number))
end

-- A definition that another shard holds: a start looks at its own shard alone.
local function know(o) call('SADD', base .. ':known', ARGV[o + 3] .. '/' .. ARGV[o + 4]) end

-- Arguments: the run, when it was created, its row, what was said at its start, its definition, what is left of its reports
-- where its log was trimmed (empty otherwise), then key and text of each job. Written right away: what comes after it in the call looks for it.
local function restore_run(o)
  local run, row = ARGV[o + 3], ARGV[o + 5]
  if call('EXISTS', RUN .. run) == 1 then return 'E' end
  if call('SISMEMBER', base .. ':known', ARGV[o + 7]) == 0 then return 'D' end
  local _, status, _, _, _, tail = match(row, ROW)
  local _, ended, kept, number, flow = match(tail, TAIL)
  call('MSET', RUN .. run, row, START .. run, new_run(run, number, ARGV[o + 4], ARGV[o + 6]))
  if ARGV[o + 8] ~= '' then call('SET', base .. ':reports:' .. run, ARGV[o + 8]) end
  relist(run, way_name(run, nil, status, flow), number, nil, ended ~= '-' and ended, kept)
  stamp = math.max(stamp, tonumber(number))
  local set = {}
  for at = o + 9, o + tonumber(ARGV[o + 1]), 2 do
    local key, text = ARGV[at], ARGV[at + 1]
    local j = parse(text)
    index(run, key, j)
    set[#set + 1] = key .. ':' .. run
    set[#set + 1] = text
    stamp = math.max(stamp, tonumber(j.number))
  end
  if #set > 0 then spread({ 'HSET', JOBS }, set, 2) end
end

-- Arguments: the run, how many dates, then of each: itself, the number of its first event, how many, and the events.
local function restore_events(o)
  local run, at = ARGV[o + 3], o + 4
  if call('EXISTS', RUN .. run) == 0 then return 'M' end
  for _ = 1, tonumber(ARGV[o + 4]) do
    local ts, first, count = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    feed(run, ts, first, push(run, ts, first - 1, at + 3, count, 1))
    at = at + 3 + count
  end
end

-- Arguments: the run, then number and text of each.
local function restore_receipts(o)
  local run, set = ARGV[o + 3], {}
  if call('EXISTS', RUN .. run) == 0 then return 'M' end
  for at = o + 4, o + tonumber(ARGV[o + 1]), 2 do
    local number, text = ARGV[at], ARGV[at + 1]
    local c = parse_receipt(text)
    put(base .. ':receipt-ids:' .. run, number, c.event)
    list_receipt(run, number, c, 0)
    set[#set + 1] = number
    set[#set + 1] = text
  end
  if #set > 0 then spread({ 'HSET', base .. ':receipts:' .. run }, set, 2) end
end

local function restore_values(o)
  local owner, count = ARGV[o + 3], tonumber(ARGV[o + 4])
  for i = 0, count - 1 do
    local at = o + 4 + i * 3
    local field, value, expires = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    put_value(owner, field, expires, tick(), value)
  end
end

local function restore_document(o) put_document(ARGV[o + 3], ARGV[o + 4], ARGV[o + 6], ARGV[o + 5]) end

local KINDS = { F = define, K = know, R = restore_run, E = restore_events, C = restore_receipts, V = restore_values,
  D = restore_document }
local refused, o = '', 3
for _ = 1, tonumber(ARGV[3]) do
  refused = KINDS[ARGV[o + 2]](o) or ''
  if refused ~= '' then break end
  o = o + tonumber(ARGV[o + 1])
end
finish(ARGV[2])
return { counted(), format('%.0f', us), refused }
