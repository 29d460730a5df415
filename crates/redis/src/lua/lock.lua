-- Named locks. ARGV: seen, verb, tenant, name (none of `list`), token, ttl, owner.
-- They stand beside key-value state, so that those whose time is over are purged with it.
local verb, who, field = ARGV[2], 'lock:' .. ARGV[3], ARGV[4]
local key = base .. ':state:' .. who
local answers = { counted(), format('%.0f', us) }

local function read(text)
  local till, since, token, owner = match(text, '^(%d+) (%d+) (%S+) (.*)$')
  if tonumber(till) <= now then return end
  return { till = till, since = since, token = token, owner = owner }
end

if verb == 'list' then
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    local held = read(all[i + 1])
    if held then
      for _, part in ipairs({ all[i], held.owner, held.since, held.till }) do answers[#answers + 1] = part end
    end
  end
  return answers
end

local text = call('HGET', key, field)
local held = text and read(text)
local mine = held and held.token == ARGV[5]
if verb == 'acquire' and held and not mine then
  answers[3], answers[4], answers[5] = 'held', held.till, held.owner
  return answers
end
if verb ~= 'acquire' and not mine then
  answers[3] = 'none'
  return answers
end
if verb == 'release' then
  call('HDEL', key, field)
  drop(base .. ':expiring', who .. ' ' .. field)
  answers[3] = 'released'
else
  local till = now + tonumber(ARGV[6])
  local owner = verb == 'acquire' and ARGV[7] or held.owner
  local since = mine and held.since
  if not since then
    -- Later than every grant before, even if the clock was set back or stands still.
    since = format('%.0f', math.max(now, tonumber(call('HGET', KEYS[1], 'last_lock') or 0) + 1))
    call('HSET', KEYS[1], 'last_lock', since)
  end
  call('HSET', key, field, till .. ' ' .. since .. ' ' .. ARGV[5] .. ' ' .. owner)
  put(base .. ':expiring', till, who .. ' ' .. field)
  answers[3], answers[4], answers[5] = 'granted', tostring(till), since
end
finish()
answers[1] = counted()
return answers
