-- ARGV: seen, who, count, then each append with its number of arguments first.
-- Arguments of a line: the event, and the scope, key, value and time to live of a change of state.
local WIDTH = 6
local function change(run, flow, at, order)
  local scope, field, value, ttl = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
  if scope == '' then return end
  local tenant, owner = match(run, '^[^/]+'), nil
  if scope == 'run' then owner = 'run:' .. run
  elseif scope == 'flow' then owner = 'flow:' .. tenant .. '/' .. flow
  elseif scope == 'tenant' then owner = 'tenant:' .. tenant
  else owner = 'scope:' .. tenant .. '/' .. scope end
  if value == '' then
    drop_value(owner, field, order, ARGV[at + 6] == '1')
  else
    put_value(owner, field, ttl == '' and '-' or now + tonumber(ttl), order, value)
  end
end

local function append(o)
  local run, job, attempt, token = ARGV[o + 2], ARGV[o + 3], ARGV[o + 4], ARGV[o + 5]
  local from, count, hint, began = tonumber(ARGV[o + 6]), tonumber(ARGV[o + 7]), tonumber(ARGV[o + 8]), ARGV[o + 9]
  local text, prefix = call('HGET', JOBS, job .. ':' .. run), token .. ' ' .. attempt .. ' '
  if not text or sub(text, 1, #prefix) ~= prefix then return 'S' end
  local j, row = parse(text), read_row(run)
  local there = tonumber(j.lines)
  if from > there then return 'S' end
  local known = there - from
  if known >= count then return tostring(there) end

  local lines = o + 9 + known * WIDTH
  count = count - known
  local ts = format('%.0f', math.max(now, tonumber(row.last)))
  for i = 0, count - 1 do
    -- The caller's number, so that the order of its batch holds across shards; the clock where there is one shard.
    change(run, row.flow, lines + i * WIDTH, hint > 0 and format('%.0f', hint + i) or tick())
    if row.started == '-' and match(ARGV[lines + i * WIDTH + 1], '^%d+ step%.started ') then
      row.started = began == '' and ts or began
    end
  end
  local before = tonumber(row.events)
  local after = push(run, ts, before, lines, count, WIDTH)
  feed(run, ts, before + 1, after)
  row.events, row.last, j.lines = text_of(after), ts, there + count
  write_row(run, row)
  call('HSET', JOBS, job .. ':' .. run, render(j))
  return tostring(there + count), true
end

local answers, landed, o = { '', format('%.0f', us) }, false, 3
for i = 1, tonumber(ARGV[3]) do
  local answer, wrote = append(o)
  answers[i + 2] = answer
  landed = landed or wrote
  o = o + tonumber(ARGV[o + 1])
end
if landed then finish(ARGV[2]) end
answers[1] = counted()
return answers
