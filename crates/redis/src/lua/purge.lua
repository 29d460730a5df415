-- One part of what retention left to be taken away: a long log, then key-value state past its time. ARGV: seen, whether the
-- store has one shard only.
local PART = 500
local more = 0
local trash = call('HRANDFIELD', base .. ':trash')
if trash then
  local key, last = base .. ':trash:' .. trash, call('HGET', base .. ':trash', trash)
  local entries = call('XRANGE', key, '-', '+', 'COUNT', PART)
  for _, entry in ipairs(entries) do
    local number = entry[2][10]
    if number ~= last then
      last = number
      if call('HINCRBY', base .. ':feed:live', number, -1) <= 0 then
        call('HDEL', base .. ':feed:live', number)
        call('XDEL', base .. ':feed', number .. '-0')
      end
    end
  end
  if #entries < PART then
    call('UNLINK', key)
    call('HDEL', base .. ':trash', trash)
  else
    local ms, seq = match(entries[#entries][1], '^(%d+)-(%d+)$')
    call('XTRIM', key, 'MINID', ms .. '-' .. format('%.0f', tonumber(seq) + 1))
    call('HSET', base .. ':trash', trash, last)
  end
  more = 1
end
local expired = call('ZRANGEBYSCORE', base .. ':expiring', '-inf', now, 'LIMIT', 0, PART)
for _, member in ipairs(expired) do
  local owner, field = match(member, '^(%S+) (.*)$')
  local key = base .. ':state:' .. owner
  local text = call('HGET', key, field)
  local expires = text and match(text, '^(%S+)')
  if expires and expires ~= '-' and tonumber(expires) <= now then
    local shared = match(owner, '^flow:') or match(owner, '^tenant:')
    if ARGV[2] == '1' or not shared then
      call('HDEL', key, field)
    else
      -- An older value in another shard must not come back: a mark without a value stays.
      call('HSET', key, field, match(text, '^%S+ %d+ '))
    end
  end
  drop(base .. ':expiring', member)
end
if #expired == PART then more = 1 end
if trash or #expired > 0 then finish() end
return { tostring(n), format('%.0f', us), tostring(more) }
