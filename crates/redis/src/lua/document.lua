-- Documents. ARGV: seen, verb, collection; then of `put` and `create`: id, body, time to live (`-`: none); of `get` and `delete`: id; of
-- `page`: `up` or `down`, the id to go on after (empty: none), and how many.
local LOOKED, BYTES = 256, 1048576
local verb, collection, id = ARGV[2], ARGV[3], ARGV[4]
local key, ids = base .. ':doc:' .. collection, base .. ':ids:' .. collection
local answers = { counted(), format('%.0f', us) }
local function give(part) answers[#answers + 1] = part end

-- The end and the body of one that lives.
local function read(text)
  if not text then return end
  local till, at = match(text, '^(%S+) ()')
  if till ~= '-' and tonumber(till) <= now then return end
  return till, sub(text, at)
end

if verb == 'get' then
  local till, body = read(call('HGET', key, id))
  if till then give(till); give(body) end
elseif verb == 'page' then
  local up, after, most = ARGV[4] == 'up', ARGV[5], tonumber(ARGV[6])
  local look = math.max(most, LOOKED)
  local from = after ~= '' and '(' .. after or (up and '-' or '+')
  local found
  if up then
    found = call('ZRANGE', ids, from, '+', 'BYLEX', 'LIMIT', 0, look)
  else
    found = call('ZRANGE', ids, from, '-', 'BYLEX', 'REV', 'LIMIT', 0, look)
  end
  -- Whether there may be more to look at, and the id that it was looked through to.
  give(#found == look and '1' or '0')
  give(found[#found] or '')
  local count, bytes = 0, 0
  for _, at in ipairs(found) do
    local till, body = read(call('HGET', key, at))
    if till then
      give(at); give(till); give(body)
      count, bytes = count + 1, bytes + #body
      if count == most or bytes >= BYTES then
        answers[3], answers[4] = '1', at
        break
      end
    end
  end
elseif verb == 'put' or verb == 'create' then
  local till, body = read(verb == 'create' and call('HGET', key, id))
  if till then
    give(till); give(body)
  else
    till = ARGV[6] == '-' and '-' or format('%.0f', now + tonumber(ARGV[6]))
    put_document(collection, id, till, ARGV[5])
    finish()
  end
else
  local text = call('HGET', key, id)
  give(read(text) and '1' or '0')
  if text then
    drop_document(collection, id)
    finish()
  end
end
answers[1] = counted()
return answers
