-- ARGV: seen, who, count, then each commit (see `encode.rs`). No two are of one run, so that all that has to be known is read
-- in a few calls before the first is looked at, and rows, jobs and indexes are written in a few calls after the last.
-- Here every microsecond counts: arguments come as they are stored, and texts are not taken apart without need.
local byte, shape_of = string.byte, struct.unpack
-- Counts of leases, entries of the log and jobs; others, flags, arguments before those of leases; a number; a time to live.
local SHAPE, FIXED, EACH_ADD = '<I4I4I4I1I1I1dd', 31, '<dd'
local LEAVE, DROP, RELEASE = 0, 1, 3
-- The flags.
local TERMINAL, STARTED, CLEAR, MEND, FAILURE, RECEIPTS, KNOWN = 1, 2, 4, 8, 16, 32, 64
-- The same of a commit to a known row: it leaves the run without a job.
local NO_JOBS = 8
-- Arguments of a receipt: of one that is changed, and of one that a commit to a known row opens.
local EACH_RECEIPT, EACH_OPENED = 6, 5
-- What a commit does with a job: F, K, E, D, U, and R of a mend.
local FINISH, KEEP, EXPIRED, DUE, REMOVE = 70, 75, 69, 68, 82

local count = tonumber(ARGV[3])
local shapes, first_job = {}, {}
local wanted_rows, wanted_jobs, known = {}, {}, {}
do
  local o, size = 3, 0
  for i = 1, count do
    local run, new = ARGV[o + 2], ARGV[o + 3] == ''
    local leases, entries, adds, others, flags, fixed, number, ttl = shape_of(SHAPE, ARGV[o + 1])
    shapes[i] = { o, leases, entries, adds, others, flags, o + fixed, number, ttl }
    first_job[i] = size
    wanted_rows[i] = RUN .. run
    if new then known[ARGV[o + 7]] = false end
    o = o + fixed
    if flags >= KNOWN then
      for at = o + 1, o + leases * 2, 2 do size = size + 1; wanted_jobs[size] = ARGV[at] end
    else
      for at = o + 1, o + leases * 2, 2 do size = size + 1; wanted_jobs[size] = ARGV[at] .. ':' .. run end
    end
    o = o + leases * 2 + entries + adds * 3
    if flags % 64 >= RECEIPTS then
      o = o + 1 + tonumber(ARGV[o + 1]) * (flags >= KNOWN and EACH_OPENED or EACH_RECEIPT)
    end
  end
  for name in pairs(known) do known[name] = call('SISMEMBER', base .. ':known', name) == 1 end
end
local rows = call('MGET', unpack(wanted_rows))
local jobs = #wanted_jobs > 0 and fetch(JOBS, wanted_jobs) or {}

local paused = call('SMEMBERS', base .. ':paused')
local any_paused = #paused > 0
for _, name in ipairs(paused) do paused[name] = true end
-- Whether the queue of a job, known by the end of its text, is paused.
local function is_paused(run, tail) return any_paused and paused[match(run, '^[^/]+') .. '/' .. match(tail, '(%S+) %S+$')] end

-- What is written at the end, in the order of these lists.
local lease_gone, job_gone, job_set, row_set = {}, {}, {}, {}
local leased_on = {}

local function without(keys, key)
  local from, to = find(keys, ',' .. key .. ',', 1, true)
  return from and sub(keys, 1, from) .. sub(keys, to + 1) or keys
end

-- Whether a job is as the commit needs it. A job's text begins with its token and attempt.
local function fits(kind, text, prefix)
  if kind == REMOVE then return true end
  if not text or find(text, prefix, 1, true) ~= 1 then return false end
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
  if ttl >= 0 and due <= now and not is_paused(run, tail) then
    lease_until(run, now + ttl)
    job_set[size + 2] = prefix .. text_of(now + ttl) .. ' 0 ' .. now_text .. ' 0 ' .. tail
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

-- Runs that go from one status to another in this call, by `TENANT FROM TO FLOW`; from `-` where they are new.
local classes, ended = {}, {}
local function class_of(name)
  local class = classes[name]
  if not class then
    class = { runs = {} }
    class.tenant, class.from, class.to, class.flow = match(name, '^(%S+) (%S+) (%S+) (%S+)$')
    classes[name] = class
    if class.from == '-' then flows[class.tenant .. '/' .. class.flow] = true end
  end
  return class
end
local function move(run, name, number)
  local class = class_of(name)
  local runs = class.runs
  runs[#runs + 1] = number
  runs[#runs + 1] = sub(run, #class.tenant + 2)
end
local function write_moves()
  for _, class in pairs(classes) do
    local lists, runs, ids = base .. ':by:' .. class.tenant .. ':', class.runs, {}
    for k = 2, #runs, 2 do ids[k / 2] = runs[k] end
    if #ids > 0 then
      if class.from ~= '-' then
        spread({ 'ZREM', lists .. class.from }, ids, 1)
        spread({ 'ZREM', lists .. class.from .. ':' .. class.flow }, ids, 1)
      end
      spread({ 'ZADD', lists .. class.to }, runs, 2)
      spread({ 'ZADD', lists .. class.to .. ':' .. class.flow }, runs, 2)
    end
  end
  if #ended > 0 then spread({ 'ZADD', base .. ':ended' }, ended, 2) end
end

local function created_of(run) return match(call('GET', START .. run) or '', '^%d+') end

-- The text of an entry that ends with a terminal event, whose data ends with the time that the run took, in 15 digits or spaces.
local function timed(run, ts, new, text)
  if sub(text, -28, -18) ~= '"duration":' then return text end
  local created = not new and tonumber(created_of(run)) or ts
  return sub(text, 1, -18) .. format('%15.0f', math.max(ts - created, 0)) .. '}\n'
end

local function commit(i, o, leases, entries, adds, others, flags, uses, hint, began)
  local kinds, run, version, status = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3], ARGV[o + 4]
  local row, new = rows[i], version == ''
  local pushed = uses + leases * 2
  local added = pushed + entries

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
      if kind ~= FINISH and kind ~= EXPIRED then unindex(run, key, parse(text)) end
      job_gone[#job_gone + 1] = field
      keys = without(keys, key)
    end
  end
  if others ~= LEAVE and keys ~= ',' then keys = change_others(run, keys, others, kept or {}) end
  local granted
  for k = 0, adds - 1 do
    local due, ttl = shape_of(EACH_ADD, kinds, FIXED + 1 + leases * 5 + k * 16)
    local at = added + k * 3
    if add_job(run, at, due, ttl, hint) then
      granted = granted and granted .. ',' .. ARGV[at + 1] or ARGV[at + 1]
    end
    keys = keys .. ARGV[at + 1] .. ','
  end
  if keys == ',' and not new then lease_gone[#lease_gone + 1] = run end

  local ts_text = now_text
  if last and tonumber(last) > now then ts_text = last end
  local before = tonumber(seq)
  local after, counts = before, FIXED + 1 + leases * 5 + adds * 16
  for k = 0, entries - 1 do
    local text = ARGV[pushed + 1 + k]
    if k == entries - 1 and flags % 2 == TERMINAL then text = timed(run, tonumber(ts_text), new, text) end
    after = enter(run, ts_text, after, shape_of('<I4', kinds, counts + k * 4), text)
  end
  feed(run, ts_text, before + 1, after)
  if after > before or new then last = ts_text end
  local part = ARGV[o + 5]
  -- A mend of jobs leaves the row alone.
  if flags % 16 >= MEND then
    status, part = was, steps .. ' ' .. failure .. '\n' .. sub(row, rest)
  else
    if failure ~= '' and flags % 32 < FAILURE then
      local from = find(part, '\n', 1, true)
      part = sub(part, 1, from - 1) .. failure .. sub(part, from)
    end
    local terminal = flags % 2 == 1
    local starts = flags % 4 >= STARTED and (new or byte(tail) == 45)
    if new or terminal or starts or status ~= was then
      local started, ended, kept, flow = '-', '-', '0', nil
      if new then
        if uses - o > 8 then kept = '0:' .. ARGV[o + 9] end
        flow = class_of(ARGV[o + 8]).flow
        row_set[#row_set + 1] = START .. run
        row_set[#row_set + 1] = new_run(run, number, now_text, ARGV[o + 6])
      else
        started, ended, kept, number, flow = match(tail, TAIL)
      end
      if starts then
        started = began > 0 and text_of(began) or ts_text
      elseif terminal and started == '-' then
        started = new and ts_text or created_of(run) or '-'
      end
      local ended_before = ended ~= '-' and ended
      if terminal then ended = ts_text end
      tail = started .. ' ' .. ended .. ' ' .. kept .. ' ' .. number .. ' ' .. flow
      if new and not terminal and not find(status, ':', 1, true) then
        move(run, ARGV[o + 8], number)
      elseif terminal or status ~= was then
        relist(run, flow, number, was, ended_before, status, ended ~= '-' and ended, kept)
      end
    end
    if flags % 8 >= CLEAR then call('UNLINK', base .. ':state:run:' .. run, base .. ':keys:run:' .. run) end
  end
  if flags >= RECEIPTS then change_receipts(run, match(tail, '(%S+)$'), ts_text, added + adds * 3) end
  local head = (new and '1' or text_of(tonumber(version) + 1)) .. ' ' .. status .. ' ' .. text_of(after) .. ' ' .. last .. ' '
    .. keys .. ' ' .. tail
  local size = #row_set
  row_set[size + 1] = wanted_rows[i]
  row_set[size + 2] = head .. '\n' .. part
  -- A row with a failure is not one that `known_commit` keeps.
  if failure ~= '' or flags % 32 >= FAILURE then head = '' end
  return seq .. ' ' .. ts_text .. ' ' .. (granted or '-') .. ' ' .. head
end

-- What a commit to a known row opens, from its arguments after `at` on. All receipts of one list begin alike in this call; that
-- of a worker is part of that of its status.
local receipt_lists = {}
local function open_receipts(run, at)
  local key, ids = base .. ':receipts:' .. run, base .. ':receipt-ids:' .. run
  for o = at + 1, at + 1 + (tonumber(ARGV[at + 1]) - 1) * EACH_OPENED, EACH_OPENED do
    local number, list = ARGV[o + 1], receipt_lists[ARGV[o + 3]]
    if not list then
      local of_status, status, worker = match(ARGV[o + 3], '^([^:]+:(%a+)):?(.*)$')
      local started = status == 'pending' and '-' or now_text
      local completed = (status == 'completed' or status == 'failed') and now_text or '-'
      list = { status .. ' ' .. (worker == '' and '-' or worker) .. ' ' .. now_text .. ' ' .. started .. ' ' .. completed,
        format('%015d', now), {}, of_status }
      receipt_lists[ARGV[o + 3]] = list
    end
    local members = list[3]
    members[#members + 1] = 0
    members[#members + 1] = list[2] .. ARGV[o + 4]
    call('HSET', key, number, list[1] .. ARGV[o + 5])
    call('ZADD', ids, number, ARGV[o + 2])
  end
end

-- A commit of a run whose row the caller knows: it says how the row begins, and how it is to read but for the date. Anything
-- else than that, and the caller is to say it in full. The same as `commit`, without taking texts apart.
local betweens = {}
local function known_commit(i, o, leases, _, adds, _, flags, uses, not_before, ttl)
  local run, row, job = ARGV[o + 2], rows[i], first_job[i]
  local entry = uses + leases * 2 + 1
  if now < not_before or not row or find(row, ARGV[o + 3], 1, true) ~= 1 then return 'R' end
  for k = 1, leases do
    local text = jobs[job + k]
    if not text or find(text, ARGV[uses + k * 2], 1, true) ~= 1 then return 'R' end
  end
  if any_paused then
    for k = 1, adds do
      if is_paused(run, ARGV[entry + k * 3]) then return 'R' end
    end
  end

  -- Nothing is refused from here on.
  for k = 1, leases do job_gone[#job_gone + 1] = wanted_jobs[job + k] end
  if adds > 0 then
    leased_on[run] = now + ttl
    local between = betweens[ttl]
    if not between then
      between = text_of(now + ttl) .. ' 0 ' .. now_text .. ' 0 '
      betweens[ttl] = between
    end
    local set = #job_set
    for at = entry + 1, entry + adds * 3, 3 do
      job_set[set + 1], job_set[set + 2] = ARGV[at], ARGV[at + 1] .. between .. ARGV[at + 2]
      set = set + 2
    end
  elseif flags % 16 >= NO_JOBS then
    lease_gone[#lease_gone + 1] = run
  end
  local first, count = shape_of('<dI4', ARGV[o + 1], FIXED + 1)
  local text = ARGV[entry]
  if flags % 2 == TERMINAL then text = timed(run, now, false, text) end
  local last = enter(run, now_text, first - 1, count, text)
  feed(run, now_text, first, last)
  local size = #row_set
  row_set[size + 1] = wanted_rows[i]
  local marks = flags % 4
  if marks == 0 then
    row_set[size + 2] = ARGV[o + 4] .. now_text .. ARGV[o + 5]
  elseif marks == TERMINAL + STARTED then
    row_set[size + 2] = ARGV[o + 4] .. now_text .. ARGV[o + 5] .. now_text .. ' ' .. now_text .. ARGV[o + 6]
  else
    row_set[size + 2] = ARGV[o + 4] .. now_text .. ARGV[o + 5] .. now_text .. ARGV[o + 6]
  end
  if marks % 2 == TERMINAL then
    ended[#ended + 1] = now_text
    ended[#ended + 1] = run
  end
  if flags % 8 >= CLEAR then call('UNLINK', base .. ':state:run:' .. run, base .. ':keys:run:' .. run) end
  if uses - o > 6 then move(run, ARGV[uses - 1], ARGV[uses]) end
  if flags % 64 >= RECEIPTS then open_receipts(run, entry + adds * 3) end
  return ''
end

local answers = { '', format('%.0f', us) }
for i = 1, count do
  local shape = shapes[i]
  answers[i + 2] = (shape[6] >= KNOWN and known_commit or commit)(i, unpack(shape))
end
if #row_set > 0 then
  call('MSET', unpack(row_set))
  if #lease_gone > 0 then spread({ 'ZREM', LEASES }, lease_gone, 1) end
  if #job_gone > 0 then spread({ 'HDEL', JOBS }, job_gone, 1) end
  if #job_set > 0 then spread({ 'HSET', JOBS }, job_set, 2) end
  write_moves()
  for name, list in pairs(receipt_lists) do
    spread({ 'ZADD', base .. ':receipts-by:' .. name }, list[3], 2)
    if name ~= list[4] then spread({ 'ZADD', base .. ':receipts-by:' .. list[4] }, list[3], 2) end
  end
  finish(ARGV[2])
  -- These have leases already, most of the time: a command that changes nothing is not written to the append-only file.
  write_leased(leased_on)
end
answers[1] = counted()
return answers
