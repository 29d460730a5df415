-- ARGV: seen, who, count, then each commit as `layout.rs` has it: the words of its table stand for numbers here, `SHAPE` for
-- the format of a commit's numbers and `SHAPE_NAMES` for their names. `PLACE` are the first of them, `MORE` those of few.
-- No two commits are of one run, so that all that has to be known is read in a few calls before the first is looked at, and
-- rows, jobs and indexes are written in a few calls after the last.
--
-- A commit says the first line of the row that it was decided on, and the whole row that replaces it but for what only the
-- server knows: it is compared and written, never taken apart. Where the line is another one now the answer is how the
-- row begins, and the caller says the commit anew. Here every microsecond counts: arguments come as they are stored.
local byte, unpacked = string.byte, struct.unpack

local count = tonumber(ARGV[3])
local places, first_job, wanted_rows, wanted_jobs, known = {}, {}, {}, {}, {}
do
  local at, size = 3, 0
  for i = 1, count do
    local PLACE_NAMES = unpacked(PLACE, ARGV[at + ARG_SHAPE])
    places[i], first_job[i], wanted_rows[i] = at, size, RUN .. ARGV[at + ARG_RUN]
    if ARGV[at + ARG_LINE] == '' then known[ARGV[at + START_DEFINITION]] = false end
    local first = at + fixed
    for use = first + LEASE_FIELD, first + leases * LEASE_ARGS, LEASE_ARGS do
      size = size + 1
      wanted_jobs[size] = ARGV[use]
    end
    if flags >= HAS_MORE then
      local MORE_NAMES = unpacked(MORE, ARGV[at + ARG_SHAPE], SHAPE_BYTES + 1)
      first = first + leases * LEASE_ARGS
      for other = first + 1, first + others do
        size = size + 1
        wanted_jobs[size] = ARGV[other]
      end
    end
    at = at + args
  end
  for name in pairs(known) do known[name] = call('SISMEMBER', base .. ':known', name) == 1 end
end
local rows = call('MGET', unpack(wanted_rows))
local jobs = #wanted_jobs > 0 and fetch(JOBS, wanted_jobs) or {}

local paused = call('SMEMBERS', base .. ':paused')
local any_paused = #paused > 0
for _, name in ipairs(paused) do paused[name] = true end
-- Whether the queue of a job, known by the end of its text, is paused.
local function is_paused(run, tail) return paused[match(run, '^[^/]+') .. '/' .. match(tail, '(%S+) %S+$')] end

-- What is written at the end, in the order of these lists.
local lease_gone, job_gone, job_set, row_set = {}, {}, {}, {}

local function key_of(field) return match(field, '^[^:]+') end

-- Whether a job is as the commit needs it. A job's text begins with its token and attempt.
local function fits(kind, text, start)
  if kind == REMOVE then return true end
  if not text or find(text, start, 1, true) ~= 1 then return false end
  if kind == EXPIRED then return tonumber(match(text, '^%S+ %d+ %d+ (%d+)')) <= now end
  if kind == DUE then
    local j = parse(text)
    return j.held == '0' and tonumber(j.due) <= now
  end
  return true
end

-- Jobs that a commit does not name are dropped, held or released.
local function change_others(run, job, others, what)
  for k = job + 1, job + others do
    local field, text = wanted_jobs[k], jobs[k]
    local j, key = text and parse(text), key_of(field)
    if j and what == DROP then
      unindex(run, key, j)
      job_gone[#job_gone + 1] = field
    elseif j and j.token == '-' and (j.held == '1') == (what == RELEASE) then
      unindex(run, key, j)
      j.held = what == RELEASE and '0' or '1'
      index(run, key, j)
      job_set[#job_set + 1] = field
      job_set[#job_set + 1] = render(j)
    end
  end
end

-- The text of a new job that is leased right away, between what its caller says, by the time of the lease.
local betweens = {}
local function between(ttl)
  local text = text_of(now + ttl) .. ' 0 ' .. now_text .. ' 0 '
  betweens[ttl] = text
  return text
end
-- The text of one that waits, which is put in its index.
local function waiting(run, field, head, tail, hint)
  local attempt = match(head, '(%d+) 0 $')
  local text = '- ' .. attempt .. ' 0 0 0 0 ' .. next_stamp(hint) .. ' -' .. match(tail, '^%S+(.*)$')
  index(run, key_of(field), parse(text))
  return text
end

local function created_of(run) return match(call('GET', START .. run) or '', '^%d+') end

-- The text of an entry that ends with a terminal event, whose data ends with the time that the run took, in 15 digits or spaces.
local function timed(run, ts, new, text)
  if sub(text, -28, -18) ~= '"duration":' then return text end
  local created = not new and tonumber(created_of(run)) or ts
  return sub(text, 1, -18) .. format('%15.0f', math.max(ts - created, 0)) .. '}\n'
end

-- Moves a run to the lists of its status, by the arguments after `at`. `number` is that of a new run.
local function move(run, at, ts_text, number)
  local from_end, to_end = ARGV[at + MOVE_FROM_END], ARGV[at + MOVE_TO_END]
  relist(run, ARGV[at + MOVE_WAY], number or ARGV[at + MOVE_NUMBER], from_end ~= '-' and from_end,
    to_end ~= '-' and (to_end == '*' and ts_text or to_end), ARGV[at + MOVE_KEPT])
end

-- Receipts that commits open, by their list: all of one list and date begin alike. That of a worker is part of that of its
-- status.
local receipt_lists = {}
local function open_receipts(run, ts, ts_text, opened, at)
  local key, ids = base .. ':receipts:' .. run, base .. ':receipt-ids:' .. run
  for o = at, at + (opened - 1) * OPENED_ARGS, OPENED_ARGS do
    local number, name = ARGV[o + OPENED_NUMBER], ARGV[o + OPENED_LIST]
    local list = receipt_lists[name]
    if not list or list.ts ~= ts then
      local of_status, status, worker = match(name, '^([^:]+:(%a+)):?(.*)$')
      local started = status == 'pending' and '-' or ts_text
      local completed = (status == 'completed' or status == 'failed') and ts_text or '-'
      list = { ts = ts, of_status = of_status, members = list and list.members or {}, date = format('%015d', ts),
        dates = status .. ' ' .. (worker == '' and '-' or worker) .. ' ' .. ts_text .. ' ' .. started .. ' ' .. completed }
      receipt_lists[name] = list
    end
    local members = list.members
    members[#members + 1] = 0
    members[#members + 1] = list.date .. ARGV[o + OPENED_MEMBER]
    call('HSET', key, number, list.dates .. ARGV[o + OPENED_TEXT])
    call('ZADD', ids, number, ARGV[o + OPENED_EVENT])
  end
end
local function write_receipt_lists()
  for name, list in pairs(receipt_lists) do
    spread({ 'ZADD', base .. ':receipts-by:' .. name }, list.members, 2)
    if name ~= list.of_status then spread({ 'ZADD', base .. ':receipts-by:' .. list.of_status }, list.members, 2) end
  end
end

-- What a commit does to receipts that are there.
local function change_receipts(run, ts_text, changed, at)
  local key, set = base .. ':receipts:' .. run, {}
  for o = at, at + (changed - 1) * CHANGED_ARGS, CHANGED_ARGS do
    local number, status = ARGV[o + CHANGED_NUMBER], ARGV[o + CHANGED_STATUS]
    local worker, outcome = ARGV[o + CHANGED_WORKER], ARGV[o + CHANGED_OUTCOME]
    local text = call('HGET', key, number)
    if text then
      local c = parse_receipt(text)
      list_receipt(run, number, c, false)
      c.status = status
      if worker ~= '' then c.worker = worker end
      if outcome ~= '' then c.outcome = outcome end
      if status ~= 'pending' and c.started == '-' then c.started = ts_text end
      if (status == 'completed' or status == 'failed') and c.completed == '-' then c.completed = ts_text end
      list_receipt(run, number, c, 0)
      set[#set + 1] = number
      set[#set + 1] = table.concat({ c.status, c.worker, c.received, c.started, c.completed, c.event, c.name, c.flow,
        #c.sender, c.sender }, ' ') .. c.outcome
    end
  end
  if #set > 0 then spread({ 'HSET', key }, set, 2) end
end

local function commit(i, at)
  local shape, run, row, job = ARGV[at + ARG_SHAPE], ARGV[at + ARG_RUN], rows[i], first_job[i]
  local SHAPE_NAMES = unpacked(SHAPE, shape)
  -- Few commits have any of these.
  local MORE_NAMES = MORE_NONE
  local packed = SHAPE_BYTES + 1
  if flags >= HAS_MORE then
    MORE_NAMES = unpacked(MORE, shape, packed)
    packed = packed + MORE_BYTES
  end
  local line = ARGV[at + ARG_LINE]
  local new = line == ''

  -- The guards, in their order: the row, then the jobs that are named. The caller has looked at the keys that are added.
  if new then
    if row then return 'E' end
    if not known[ARGV[at + START_DEFINITION]] then return 'D' end
  elseif not row or find(row, line, 1, true) ~= 1 then
    return 'R' .. (row and match(row, '^[^\n]*\n[^\n]*') or '')
  end
  local use, bytes = at + fixed, packed
  for k = job + 1, job + leases do
    local kind = uses > 0 and byte(shape, bytes) or FINISH
    if not fits(kind, jobs[k], ARGV[use + LEASE_FITS]) then return 'S' .. key_of(wanted_jobs[k]) end
    use = use + LEASE_ARGS
    if uses > 0 then bytes = bytes + LEASE_BYTES end
  end

  -- Nothing is refused from here on. Jobs that are named go, but for one that is kept.
  local number = new and next_stamp(hint)
  local ts, ts_text = now, now_text
  if last > now then ts, ts_text = last, text_of(last) end
  bytes = packed
  for k = job + 1, job + leases do
    local kind, field, text = uses > 0 and byte(shape, bytes) or FINISH, wanted_jobs[k], jobs[k]
    if kind == KEEP then
      local j = parse(text)
      j.lines = tonumber(j.lines) + unpacked('<I4', shape, bytes + 1)
      job_set[#job_set + 1] = field
      job_set[#job_set + 1] = render(j)
    elseif text then
      if kind ~= FINISH and kind ~= EXPIRED then unindex(run, key_of(field), parse(text)) end
      job_gone[#job_gone + 1] = field
    end
    if uses > 0 then bytes = bytes + LEASE_BYTES end
  end
  local arg = at + fixed + leases * LEASE_ARGS
  if others > 0 then
    change_others(run, job + leases, others, what)
    arg = arg + others
  end

  -- New jobs are leased right away where that is asked for and can be granted.
  local declined, soonest, size = '', nil, #job_set
  for _ = 1, adds do
    local due, ttl = unpacked('<dd', shape, bytes)
    local field, head, tail = ARGV[arg + JOB_FIELD], ARGV[arg + JOB_HEAD], ARGV[arg + JOB_TAIL]
    job_set[size + 1] = field
    if ttl >= 0 and due <= now and not (any_paused and is_paused(run, tail)) then
      if not soonest or ttl < soonest then soonest = ttl end
      job_set[size + 2] = head .. (betweens[ttl] or between(ttl)) .. tail
    else
      if ttl >= 0 then declined = declined .. key_of(field) .. ',' end
      job_set[size + 2] = waiting(run, field, head, tail, hint)
    end
    arg, bytes, size = arg + JOB_ARGS, bytes + JOB_BYTES, size + 2
  end
  if soonest then leased[run] = now + soonest end

  -- The log. Most commits are one entry.
  if new_events > 0 then
    local seq = events
    for k = 1, math.max(entries, 1) do
      local text, size = ARGV[arg + k], new_events
      if entries > 0 then
        size = unpacked('<I4', shape, bytes)
        bytes = bytes + ENTRY_BYTES
      end
      if flags % (ENDS * 2) >= ENDS and seq + size == events + new_events then text = timed(run, ts, new, text) end
      seq = enter(run, ts_text, seq, size, text)
    end
    feed(run, ts_text, events + 1, seq)
    arg = arg + math.max(entries, 1)
  end
  if opened > 0 then open_receipts(run, ts, ts_text, opened, arg) end
  if changed > 0 then change_receipts(run, ts_text, changed, arg + opened * OPENED_ARGS) end
  -- Most commits do none of these.
  if flags ~= DATED then
    if flags % (LAST_JOB * 2) >= LAST_JOB then lease_gone[#lease_gone + 1] = run end
    if flags % (CLEAR * 2) >= CLEAR then call('UNLINK', base .. ':state:run:' .. run, base .. ':keys:run:' .. run) end
    if flags % (MOVED * 2) >= MOVED then move(run, at + (new and ARG_ARGS + START_ARGS or ARG_ARGS), ts_text, number) end
  end

  -- The new row. A `*` stands for the date of this commit, a `#` for the number of a new run, or the date of its creation.
  local after, asked = ARGV[at + ARG_AFTER], nil
  if marks > 0 then
    after = string.gsub(after, '[*#]', function(mark)
      if mark == '*' then return ts_text end
      asked = number or created_of(run) or '-'
      return asked
    end, marks)
  end
  size = #row_set
  row_set[size + 1] = wanted_rows[i]
  if flags == DATED or flags % (DATED * 2) >= DATED then
    row_set[size + 2] = ARGV[at + ARG_BEFORE] .. ts_text .. after
  elseif flags % (REST_STAYS * 2) >= REST_STAYS then
    row_set[size + 2] = ARGV[at + ARG_BEFORE] .. after .. sub(row, #line)
  else
    row_set[size + 2] = ARGV[at + ARG_BEFORE] .. after
  end
  if new then
    row_set[size + 3] = START .. run
    row_set[size + 4] = new_run(run, number, now_text, ARGV[at + START_SAID])
  end
  -- Most of the time the caller knows what the answer would be.
  if declined == '' and not asked then return '' end
  return 'L' .. (asked or '-') .. ' ' .. declined
end

local answers = { '', format('%.0f', us) }
for i = 1, count do answers[i + 2] = commit(i, places[i]) end
if #row_set > 0 then
  call('MSET', unpack(row_set))
  if #lease_gone > 0 then spread({ 'ZREM', LEASES }, lease_gone, 1) end
  if #job_gone > 0 then spread({ 'HDEL', JOBS }, job_gone, 1) end
  if #job_set > 0 then spread({ 'HSET', JOBS }, job_set, 2) end
  write_receipt_lists()
  finish(ARGV[2])
end
answers[1] = counted()
return answers
