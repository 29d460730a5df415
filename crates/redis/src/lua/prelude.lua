-- What every script begins with. KEYS[1] is the shard's `meta`; all other keys stand under the same hash tag.
-- Scripts decode and check first and write last, because Lua does not roll back.
local call, match, format, sub, find = redis.call, string.match, string.format, string.sub, string.find
local ARGV, tonumber = ARGV, tonumber
local base = sub(KEYS[1], 1, -6)
local clock = call('TIME')
local us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(us / 1000)
local now_text = format('%.0f', now)
local LEASES, TIMERS, JOBS = base .. ':leases', base .. ':timers', base .. ':jobs'
local RUN, LOG, START = base .. ':run:', base .. ':log:', base .. ':start:'
local TERMINAL = { completed = true, failed = true, cancelled = true }

-- A shard that stands behind what the caller has seen went back in time; so did one that lacks the caller's own mark, the
-- count at its last write, whatever others have written since.
local seen, caller, known = match(ARGV[1], '^(%d+) (%S+) (%d+)$')
local MARK_OF = 'w:' .. caller
local meta = call('HMGET', KEYS[1], 'n', 'stamp', MARK_OF)
local n, stamp = tonumber(meta[1] or 0), tonumber(meta[2] or 0)
local mine = meta[3] and tonumber(match(meta[3], '^%d+')) or 0
if n < tonumber(seen) then return { 'behind', tostring(n) } end
if mine < tonumber(known) then return { 'behind', '' } end
-- What every answer begins with.
local function counted() return n .. ' ' .. mine end

-- Orders runs and jobs by creation: microseconds, never twice the same in a shard. Where a store has several shards the
-- caller gives the number, so that the order of its batch holds across them.
local function next_stamp(hint)
  stamp = math.max(stamp + 1, hint > 0 and hint or us)
  return format('%.0f', stamp)
end

-- Orders what happens within a call and, as far as clocks agree, across shards.
local ticks = 0
local function tick()
  ticks = ticks + 1
  return format('%.0f', us + ticks)
end

-- Small numbers as text: making one anew costs more than finding it again.
local texts = {}
local function text_of(number)
  local text = texts[number]
  if not text then
    text = format('%d', number)
    texts[number] = text
  end
  return text
end

-- Calls a command with many arguments, in parts that fit Lua's stack. `step` arguments belong together.
local function spread(head, args, step)
  if #args <= 4000 then
    if head[3] then call(head[1], head[2], head[3], unpack(args)) else call(head[1], head[2], unpack(args)) end
    return
  end
  local most = 4000 - 4000 % step
  for from = 1, #args, most do
    local part = { unpack(head) }
    for i = from, math.min(from + most - 1, #args) do part[#part + 1] = args[i] end
    call(unpack(part))
  end
end

-- Fields of a hash, however many.
local function fetch(key, fields)
  if #fields <= 4000 then return call('HMGET', key, unpack(fields)) end
  local all = {}
  for from = 1, #fields, 4000 do
    for _, value in ipairs(call('HMGET', key, unpack(fields, from, math.min(from + 3999, #fields)))) do
      all[#all + 1] = value
    end
  end
  return all
end

-- Changes of sorted sets, gathered over the whole call: the last word on a member counts.
local sets = {}
local function put(key, score, member)
  local set = sets[key]
  if not set then set = {}; sets[key] = set end
  set[member] = score
end
local function drop(key, member) put(key, false, member) end

-- Runs with leases, by a time before which none of them ends: an end that is put off is seen when that time comes, by a sweep.
local leased = {}
local function lease_until(run, expires)
  expires = tonumber(expires)
  if not leased[run] or expires < leased[run] then leased[run] = expires end
end
local function write_leased(ends)
  local new = {}
  for run, expires in pairs(ends) do new[#new + 1] = expires; new[#new + 1] = run end
  if #new > 0 then spread({ 'ZADD', LEASES, 'LT' }, new, 2) end
end

local held, lanes, flows, states, retains, ways = {}, {}, {}, {}, {}, {}
local function count_held(lane, by) held[lane] = (held[lane] or 0) + by end

-- Writes what was gathered. Comes last.
local function flush()
  for key, set in pairs(sets) do
    local add, gone = {}, {}
    for member, score in pairs(set) do
      if score then add[#add + 1] = score; add[#add + 1] = member else gone[#gone + 1] = member end
    end
    if #gone > 0 then spread({ 'ZREM', key }, gone, 1) end
    if #add > 0 then spread({ 'ZADD', key }, add, 2) end
  end
  for _, way in pairs(ways) do
    local ids = {}
    for k = 2, #way.runs, 2 do ids[k / 2] = way.runs[k] end
    for _, list in ipairs(way.out) do spread({ 'ZREM', list }, ids, 1) end
    for _, list in ipairs(way.into) do spread({ 'ZADD', list }, way.runs, 2) end
  end
  write_leased(leased)
  for lane, by in pairs(held) do
    if by ~= 0 and call('HINCRBY', base .. ':held', lane, by) == 0 then call('HDEL', base .. ':held', lane) end
  end
  local new = {}
  for lane in pairs(lanes) do
    -- One that is known keeps its turn.
    if not call('ZSCORE', base .. ':lanes', lane) then new[#new + 1] = tick(); new[#new + 1] = lane end
  end
  if #new > 0 then spread({ 'ZADD', base .. ':lanes' }, new, 2) end
  new = {}
  for flow in pairs(flows) do new[#new + 1] = flow end
  if #new > 0 then spread({ 'SADD', base .. ':flows' }, new, 1) end
  if next(states) then
    new = {}
    for state in pairs(states) do new[#new + 1] = state end
    spread({ 'SADD', base .. ':states' }, new, 1)
  end
  for own in pairs(retains) do call('SADD', base .. ':retains', own) end
end

-- A document, and what finds it: its place among the ids of its collection, its end, and the set of collections.
local function put_document(collection, id, till, body)
  call('HSET', base .. ':doc:' .. collection, id, till .. ' ' .. body)
  call('ZADD', base .. ':ids:' .. collection, 0, id)
  call('SADD', base .. ':docs', collection)
  put(base .. ':doc-ends', till ~= '-' and till, collection .. ' ' .. id)
end
local function drop_document(collection, id)
  call('HDEL', base .. ':doc:' .. collection, id)
  call('ZREM', base .. ':ids:' .. collection, id)
  if call('EXISTS', base .. ':doc:' .. collection) == 0 then call('SREM', base .. ':docs', collection) end
  drop(base .. ':doc-ends', collection .. ' ' .. id)
end

-- A value of key-value state as its field has it: its end, its order among shards, itself. That of a run lives in the run's
-- shard; what runs share lives in the shard that it was written from, and the newest counts. `keys` has an owner's keys in order, and
-- `scopes` the owners that no run and no flow leads to.
local function put_value(owner, field, expires, order, value)
  call('HSET', base .. ':state:' .. owner, field, expires .. ' ' .. order .. ' ' .. value)
  call('ZADD', base .. ':keys:' .. owner, 0, field)
  if expires ~= '-' and value ~= '' then put(base .. ':expiring', expires, owner .. ' ' .. field) end
  if find(owner, '^tenant:') or find(owner, '^scope:') then call('SADD', base .. ':scopes', owner) end
end
-- `alone`: the store has no other shard where an older value could be left.
local function drop_value(owner, field, order, alone)
  local key = base .. ':state:' .. owner
  if not alone and not find(owner, '^run:') and not find(owner, '^lock:') then
    -- A mark without a value, so that no older value elsewhere comes back.
    put_value(owner, field, now_text, order, '')
    return
  end
  call('HDEL', key, field)
  call('ZREM', base .. ':keys:' .. owner, field)
  if call('EXISTS', key) == 0 then call('SREM', base .. ':scopes', owner) end
end

-- The runs that this call wrote events of: one entry of the feed.
local refs = {}
local function feed(run, ts, first, last)
  if last >= first then refs[#refs + 1] = run .. ' ' .. ts .. ' ' .. text_of(first) .. ' ' .. text_of(last) end
end

-- Counts the shard on, enters the feed, and tells who watches. Gives the answer's first two elements.
local function finish(who)
  flush()
  n = n + 1
  mine = n
  call('HSET', KEYS[1], 'n', n, 'stamp', format('%.0f', stamp), MARK_OF, n .. ' ' .. now_text)
  if #refs > 0 then call('XADD', base .. ':feed', n .. '-0', 'runs', table.concat(refs, '\n')) end
  if who then call('PUBLISH', match(base, '^{(.*):%d+}$') .. ':wake', who) end
end

-- A job as its field in `jobs` has it.
local function parse(text)
  local j = {}
  j.token, j.attempt, j.lines, j.expires, j.released, j.leased, j.number, j.worker, j.priority, j.due, j.held,
    j.name, j.queue, j.need = match(text,
    '^(%S+) (%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%S+) (%d) (%-?%d+) (%d) (%S+) (%S+) (%S+)$')
  return j
end
local function render(j)
  return table.concat({ j.token, j.attempt, j.lines, j.expires, j.released, j.leased, j.number, j.worker, j.priority,
    j.due, j.held, j.name, j.queue, j.need }, ' ')
end

-- A run's row: what commits look at; counts of steps and the failure, if any; the encoded state. `keys` holds the keys of
-- its jobs between commas; `tail` is what is seldom needed. `kept` there is 1 where the events are gone, 0 where they are not,
-- and behind a colon how long the definition keeps the run, where it says so.
local ROW = '^(%d+) (%S+) (%d+) (%d+) (%S+) ([^\n]*)\n(%d+ %d+ %d+) ([^\n]*)\n()'
local TAIL = '^(%S+) (%S+) (%S+) (%d+) (%S+)$'
local function read_row(run)
  local text = call('GET', RUN .. run)
  if not text then return end
  local r, tail, state = {}, nil, nil
  r.version, r.status, r.events, r.last, r.keys, tail, r.steps, r.failure, state = match(text, ROW)
  r.started, r.ended, r.kept, r.number, r.flow = match(tail, TAIL)
  r.state = sub(text, state)
  return r
end
local function write_row(run, r)
  local head = table.concat({ r.version, r.status, r.events, r.last, r.keys, r.started, r.ended, r.kept, r.number,
    r.flow }, ' ')
  call('SET', RUN .. run, head .. '\n' .. r.steps .. ' ' .. r.failure .. '\n' .. r.state)
end

local function lane_of(run, j) return match(run, '^[^/]+') .. '/' .. j.queue .. '/' .. j.need end
local function waits(priority, lane) return base .. ':wait:' .. priority .. ':' .. lane end

-- The keys of a run's jobs, and their texts.
local function jobs_of(run)
  local row = call('GET', RUN .. run)
  local keys, fields = {}, {}
  if row then
    for key in string.gmatch(match(row, '^%d+ %S+ %d+ %d+ (%S+)'), '[^,]+') do
      keys[#keys + 1] = key
      fields[#fields + 1] = key .. ':' .. run
    end
  end
  return keys, #keys > 0 and fetch(JOBS, fields) or {}
end

-- A job that waits is in exactly one index: timers, its lane, or, held, none. Of one that is leased its run is.
local function index(run, key, j)
  local step = tonumber(key) >= 0
  if j.token ~= '-' then
    lease_until(run, j.expires)
  elseif j.held == '1' then
    if step then count_held(lane_of(run, j), 1) end
  elseif step then
    local lane = lane_of(run, j)
    put(waits(j.priority, lane), j.due, j.number .. ':' .. key .. ':' .. run)
    lanes[lane] = true
  else
    put(TIMERS, j.due, key .. ':' .. run)
  end
end
local function unindex(run, key, j)
  local step = tonumber(key) >= 0
  if j.token ~= '-' then return end
  if j.held == '1' then
    if step then count_held(lane_of(run, j), -1) end
  elseif step then
    drop(waits(j.priority, lane_of(run, j)), j.number .. ':' .. key .. ':' .. run)
  else
    drop(TIMERS, key .. ':' .. run)
  end
end

-- The word of a status as a row has it, and the state of a machine behind it, empty for a flow.
local function word_of(status) return match(status, '^(%a+):?(.*)$') end

-- The list of ended runs that a run belongs in. Those of one retention lie together, so that retention finds what is due
-- without walking over what is kept longer; `retains` has which there are.
local ended_lists = {}
local function ended_list(kept)
  local list = ended_lists[kept]
  if not list then
    local trimmed, own = match(kept, '^(%d):?(.*)$')
    list = base .. (trimmed == '1' and ':trimmed' or ':ended')
    if own ~= '' then
      retains[own] = true
      list = list .. ':' .. own
    end
    ended_lists[kept] = list
  end
  return list
end

-- Runs that go from one status to another in this call, by `TENANT FROM TO FLOW`; `-` is where there is none.
local function way_of(name)
  local tenant, from, to, flow = match(name, '^(%S+) (%S+) (%S+) (%S+)$')
  local lists, way = base .. ':by:' .. tenant .. ':', { runs = {}, out = {}, into = {}, id_at = #tenant + 2 }
  local old, old_state = word_of(from)
  local new, new_state = word_of(to)
  local function through(into, word, state, other)
    if not word then return end
    local of_flow = lists .. word .. ':' .. flow
    if word ~= other then into[1], into[2] = lists .. word, of_flow end
    if state ~= '' then into[#into + 1] = of_flow .. ':' .. state end
  end
  if from ~= to then
    through(way.out, old, old_state, new)
    through(way.into, new, new_state, old)
    if new and new_state ~= '' then states[tenant .. '/' .. flow .. '/' .. new_state] = true end
    if not old then flows[tenant .. '/' .. flow] = true end
  end
  way.was_ended, way.is_ended = old and TERMINAL[old], new and TERMINAL[new]
  ways[name] = way
  return way
end

-- Moves a run between the lists of its status and state, and in or out of those that have ended. Once in a call.
local function relist(run, name, number, from_end, to_end, kept)
  local way = ways[name] or way_of(name)
  local runs = way.runs
  runs[#runs + 1] = number
  runs[#runs + 1] = sub(run, way.id_at)
  if way.is_ended and to_end then
    put(ended_list(kept), to_end, run)
  elseif way.was_ended and from_end then
    drop(ended_list(kept), run)
  end
end
local function way_name(run, from, to, flow)
  return match(run, '^[^/]+') .. ' ' .. (from or '-') .. ' ' .. (to or '-') .. ' ' .. flow
end

-- A receipt as its field in its run's `receipts` has it.
local RECEIPT = '^(%S+) (%S+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+) (%d+) ()'
local function parse_receipt(text)
  local c, bytes, at = {}, nil, nil
  c.status, c.worker, c.received, c.started, c.completed, c.event, c.name, c.flow, bytes, at = match(text, RECEIPT)
  c.sender, c.outcome = sub(text, at, at + bytes - 1), sub(text, at + bytes)
  return c
end
-- Enters a receipt into the lists of its status and worker, score 0, or takes it out of them, score false.
local function list_receipt(run, number, c, score)
  local tenant, id = match(run, '^([^/]+)/(.+)$')
  local list = base .. ':receipts-by:' .. tenant .. ':' .. c.status
  local member = format('%015d %s %010d', c.received, id, number)
  put(list, score, member)
  if c.worker ~= '-' then put(list .. ':' .. c.worker, score, member) end
end

-- What is said once, at the start of a run: the labels, the rest. Lists the run by its labels; gives the text of its key
-- `start:`.
local function new_run(run, number, created, said)
  if find(said, ' - ', 1, true) ~= 1 then
    local tenant, id = match(run, '^([^/]+)/(.+)$')
    for label in string.gmatch(match(said, '^ (%S+)'), '[^,]+') do
      put(base .. ':label:' .. tenant .. ':' .. label, number, id)
    end
  end
  return created .. said
end

-- The events of a log are numbered from 1 and dated as they are written, some to an entry: the id of an entry is the date
-- and the number of its last event, its field `events` a line `BYTES TYPE STEP ATTEMPT SLOT DATA` of each. Logs of a format
-- before have a field `event`, one without its bytes.
local function each_event(text, seen_one)
  local at = 1
  while at <= #text do
    local bytes, from = match(text, '^(%d+) ()', at)
    at = from + bytes
    seen_one(from, at - 1)
    at = at + 1
  end
end

-- The first `MARK` events are found by looking through the entries; of the others the run's `marks` remember where a payload
-- is, and where reading can begin without knowing the date of every event.
local MARK = 64
local function mark(run, ts, seq, id, text)
  local set = {}
  each_event(text, function(from)
    seq = seq + 1
    if seq <= MARK then return end
    local slot = match(text, '^%S+ %S+ %S+ (%d+)', from)
    if slot then set[#set + 1] = 's' .. slot; set[#set + 1] = id end
    if seq % MARK == 1 then set[#set + 1] = 'm' .. (seq - 1) / MARK; set[#set + 1] = ts end
  end)
  if #set > 0 then spread({ 'HSET', base .. ':marks:' .. run }, set, 2) end
end

-- Writes one entry: `count` events after number `seq`. Gives the number of the last.
local function enter(run, ts, seq, count, text)
  local last = seq + count
  local id = ts .. '-' .. text_of(last)
  call('XADD', LOG .. run, id, 'events', text)
  if last > MARK then mark(run, ts, seq, id, text) end
  return last
end

-- Writes events that come as arguments of their own, every `width`th after `from`, as many to an entry as are read in one go.
local EVENTS, BYTES = 16, 65536
local function push(run, ts, seq, from, count, width)
  local part, bytes = {}, 0
  for k = 1, count do
    local event = ARGV[from + 1 + (k - 1) * width]
    part[#part + 1] = event
    bytes = bytes + #event
    if #part == EVENTS or bytes >= BYTES or k == count then
      seq = enter(run, ts, seq, #part, table.concat(part))
      part, bytes = {}, 0
    end
  end
  return seq
end
