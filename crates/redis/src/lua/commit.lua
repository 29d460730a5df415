-- ARGV: seen, who, count, then each commit (see `encode.rs`). No two are of one run, so that all that has to be known is read
-- in a few calls before the first is looked at, and rows, jobs and indexes are written in a few calls after the last.
-- Here every microsecond counts: arguments come as they are stored, and texts are not taken apart without need.
local byte, shape_of = string.byte, struct.unpack
local SHAPE, FIXED, EACH_ADD = '<I4I4I4I1I1d', 22, '<dd'
local LEAVE, DROP, RELEASE = 0, 1, 3
-- The flag of a commit that has receipts, and the arguments of each.
local RECEIPTS, EACH_RECEIPT = 32, 6
-- What a commit does with a job: F, K, E, D, U, and R of a mend.
local FINISH, KEEP, EXPIRED, DUE, REMOVE = 70, 75, 69, 68, 82

local count = tonumber(ARGV[3])
local begins, first_job = {}, {}
local wanted_rows, wanted_jobs, known = {}, {}, {}
do
  local o, some = 3, nil
  for i = 1, count do
    local leases, events, adds, _, flags = shape_of(SHAPE, ARGV[o + 1])
    local run, new = ARGV[o + 2], ARGV[o + 3] == ''
    begins[i], first_job[i] = o, #wanted_jobs
    wanted_rows[i] = RUN .. run
    if new then known[ARGV[o + 7]] = false; some = true end
    local uses = o + (new and 7 or 5)
    for at = uses + 1, uses + leases * 2, 2 do wanted_jobs[#wanted_jobs + 1] = ARGV[at] .. ':' .. run end
    o = uses + leases * 2 + events + adds * 3
    if flags >= RECEIPTS then o = o + 1 + tonumber(ARGV[o + 1]) * EACH_RECEIPT end
  end
  if some then
    for name in pairs(known) do known[name] = call('SISMEMBER', base .. ':known', name) == 1 end
  end
end
local rows = call('MGET', unpack(wanted_rows))
local jobs = #wanted_jobs > 0 and fetch(JOBS, wanted_jobs) or {}

local paused = call('SMEMBERS', base .. ':paused')
local any_paused = #paused > 0
for _, name in ipairs(paused) do paused[name] = true end

-- What is written at the end, in the order of these lists.
local lease_gone, job_gone, job_set, lease_set, row_set = {}, {}, {}, {}, {}

local function without(keys, key)
  local from, to = find(keys, ',' .. key .. ',', 1, true)
  return from and sub(keys, 1, from) .. sub(keys, to + 1) or keys
end

-- Whether a job is as the commit needs it. A job's text begins with its token and attempt.
local function fits(kind, text, prefix)
  if kind == REMOVE then return true end
  if not text or sub(text, 1, #prefix) ~= prefix then return false end
  if kind == EXPIRED then return tonumber(match(text, '^%S+ %d+ %d+ (%d+)')) <= now end
  if kind == DUE then
    local j = parse(text)
    return j.held == '0' and tonumber(j.due) <= now
  end
  return true
end

-- Jobs that the commit does not name: dropped, held or released. Gives the keys that are left.
local function change_others(run, keys, others, kept)
  local left = keys
  for key in string.gmatch(keys, '[^,]+') do
    local field = key .. ':' .. run
    local text = not kept[key] and call('HGET', JOBS, field)
    if text then
      local j = parse(text)
      if others == DROP then
        unindex(run, key, j)
        job_gone[#job_gone + 1] = field
        left = without(left, key)
      elseif j.token == '-' and (j.held == '1') == (others == RELEASE) then
        unindex(run, key, j)
        j.held = others == RELEASE and '0' or '1'
        index(run, key, j)
        job_set[#job_set + 1] = field
        job_set[#job_set + 1] = render(j)
      end
    end
  end
  return left
end

-- Adds a job, leased right away where that is asked for and can be granted. True where it was.
local function add_job(run, at, due, ttl, hint)
  local key, prefix, tail = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local field = key .. ':' .. run
  local size = #job_set
  job_set[size + 1] = field
  if ttl >= 0 and due <= now
    and not (any_paused and paused[match(run, '^[^/]+') .. '/' .. match(tail, '(%S+) %S+$')]) then
    local expires = text_of(now + ttl)
    lease_set[#lease_set + 1] = expires
    lease_set[#lease_set + 1] = field
    job_set[size + 2] = prefix .. expires .. ' 0 ' .. now_text .. ' 0 ' .. tail
    return true
  end
  local attempt = match(prefix, '(%d+) 0 $')
  local text = '- ' .. attempt .. ' 0 0 0 0 ' .. next_stamp(hint) .. ' -' .. match(tail, '^%S+(.*)$')
  job_set[size + 2] = text
  index(run, key, parse(text))
end

-- Whether a job that is there stays where it is. `from` is where the commit's leases begin.
local function stays(key, from, leases, kinds, others)
  for k = 0, leases - 1 do
    if ARGV[from + k * 2 + 1] == key then return byte(kinds, FIXED + 1 + k * 5) == KEEP end
  end
  return others ~= DROP
end

-- What a commit does to the receipts of its run, from its arguments after `at` on.
local function change_receipts(run, flow, ts, at)
  local key, set = base .. ':receipts:' .. run, {}
  for o = at + 1, at + 1 + (tonumber(ARGV[at + 1]) - 1) * EACH_RECEIPT, EACH_RECEIPT do
    local number, status, worker, opened, outcome = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3], ARGV[o + 4], ARGV[o + 6]
    local c
    if opened ~= '' then
      c = { worker = '-', received = ts, started = '-', completed = '-', flow = flow, sender = ARGV[o + 5], outcome = '' }
      c.event, c.name = match(opened, '^(%S+) (%S+)$')
      put(base .. ':receipt-ids:' .. run, number, c.event)
    else
      local text = call('HGET', key, number)
      c = text and parse_receipt(text)
      if c then list_receipt(run, number, c, false) end
    end
    if c then
      c.status = status
      if worker ~= '' then c.worker = worker end
      if outcome ~= '' then c.outcome = outcome end
      if status ~= 'pending' and c.started == '-' then c.started = ts end
      if (status == 'completed' or status == 'failed') and c.completed == '-' then c.completed = ts end
      list_receipt(run, number, c, 0)
      set[#set + 1] = number
      set[#set + 1] = table.concat({ c.status, c.worker, c.received, c.started, c.completed, c.event, c.name, c.flow,
        #c.sender, c.sender }, ' ') .. c.outcome
    end
  end
  if #set > 0 then spread({ 'HSET', key }, set, 2) end
end

local function commit(i)
  local o = begins[i]
  local kinds, run, version, status = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3], ARGV[o + 4]
  local leases, events, adds, others, flags, hint = shape_of(SHAPE, kinds)
  local row, new = rows[i], version == ''
  local uses = o + (new and 7 or 5)
  local pushed = uses + leases * 2
  local added = pushed + events

  local there, was, seq, last, keys, tail, steps, failure, rest
  if new then
    if row then return 'E' end
    if not known[ARGV[o + 7]] then return 'D' end
    seq, keys, failure = '0', ',', ''
  else
    if not row then return 'C' end
    there, was, seq, last, keys, tail, steps, failure, rest = match(row, ROW)
    if there ~= version then return 'C' .. there end
  end
  local job = first_job[i]
  for k = 0, leases - 1 do
    local at = uses + k * 2
    if not fits(byte(kinds, FIXED + 1 + k * 5), jobs[job + k + 1], ARGV[at + 2]) then return 'S' .. ARGV[at + 1] end
  end
  local twice = adds > 1 and {}
  for k = 0, adds - 1 do
    local key = ARGV[added + k * 3 + 1]
    if find(keys, ',' .. key .. ',', 1, true) and stays(key, uses, leases, kinds, others) then return 'S' .. key end
    if twice then
      if twice[key] then return 'S' .. key end
      twice[key] = true
    end
  end

  -- Nothing is refused from here on.
  local number, kept = new and next_stamp(hint), nil
  for k = 0, leases - 1 do
    local key, kind, text = ARGV[uses + k * 2 + 1], byte(kinds, FIXED + 1 + k * 5), jobs[job + k + 1]
    local field = wanted_jobs[job + k + 1]
    if kind == KEEP then
      local j = parse(text)
      j.lines = tonumber(j.lines) + shape_of('<I4', kinds, FIXED + 2 + k * 5)
      job_set[#job_set + 1] = field
      job_set[#job_set + 1] = render(j)
      kept = kept or {}
      kept[key] = true
    elseif text then
      if kind == FINISH or kind == EXPIRED then lease_gone[#lease_gone + 1] = field else unindex(run, key, parse(text)) end
      job_gone[#job_gone + 1] = field
      keys = without(keys, key)
    end
  end
  if others ~= LEAVE and keys ~= ',' then keys = change_others(run, keys, others, kept or {}) end
  local denied, granted = false, nil
  for k = 0, adds - 1 do
    local due, ttl = shape_of(EACH_ADD, kinds, FIXED + 1 + leases * 5 + k * 16)
    local at = added + k * 3
    if add_job(run, at, due, ttl, hint) then
      granted = granted and granted .. ',' .. ARGV[at + 1] or ARGV[at + 1]
    elseif ttl >= 0 then
      denied = true
    end
    keys = keys .. ARGV[at + 1] .. ','
  end

  local ts_text = now_text
  if last and tonumber(last) > now then ts_text = last end
  local before = tonumber(seq)
  local after = push(run, ts_text, before, pushed, events, 1)
  feed(run, ts_text, before + 1, after)
  if after > before or new then last = ts_text end
  local part = ARGV[o + 5]
  -- A mend of jobs leaves the row alone.
  if flags % 16 >= 8 then
    status, part = was, steps .. ' ' .. failure .. '\n' .. sub(row, rest)
  else
    if failure ~= '' and flags % 32 < 16 then
      local from = find(part, '\n', 1, true)
      part = sub(part, 1, from - 1) .. failure .. sub(part, from)
    end
    local terminal = flags % 2 == 1
    local starts = flags % 4 >= 2 and (new or byte(tail) == 45)
    if new or terminal or starts or status ~= was then
      local started, ended, trimmed, flow = '-', '-', '0', nil
      if new then
        row_set[#row_set + 1] = START .. run
        flow, row_set[#row_set + 1] = new_run(run, number, now_text, ARGV[o + 6])
      else
        started, ended, trimmed, number, flow = match(tail, TAIL)
      end
      if starts then started = ts_text end
      local ended_before = ended ~= '-' and ended
      if terminal then ended = ts_text end
      tail = started .. ' ' .. ended .. ' ' .. trimmed .. ' ' .. number .. ' ' .. flow
      if terminal or status ~= was then
        relist(run, flow, number, was, ended_before, status, ended ~= '-' and ended, base .. ':ended')
      end
    end
    if flags % 8 >= 4 then call('UNLINK', base .. ':state:run:' .. run) end
  end
  if flags >= RECEIPTS then change_receipts(run, match(tail, '(%S+)$'), ts_text, added + adds * 3) end
  local next_version = new and '1' or text_of(tonumber(version) + 1)
  local size = #row_set
  row_set[size + 1] = wanted_rows[i]
  row_set[size + 2] = next_version .. ' ' .. status .. ' ' .. text_of(after) .. ' ' .. last .. ' ' .. keys .. ' ' .. tail
    .. '\n' .. part
  -- The caller knows the rest where all went as it asked.
  if not denied and ts_text == now_text then return seq end
  return seq .. ' ' .. ts_text .. ' ' .. (granted or '')
end

local answers = { '', format('%.0f', us) }
for i = 1, count do answers[i + 2] = commit(i) end
if #row_set > 0 then
  call('MSET', unpack(row_set))
  if #lease_gone > 0 then spread({ 'ZREM', LEASES }, lease_gone, 1) end
  if #job_gone > 0 then spread({ 'HDEL', JOBS }, job_gone, 1) end
  if #job_set > 0 then spread({ 'HSET', JOBS }, job_set, 2) end
  finish(ARGV[2])
  if #lease_set > 0 then spread({ 'ZADD', LEASES }, lease_set, 2) end
end
answers[1] = counted()
return answers
