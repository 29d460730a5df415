-- Removes runs that ended long ago, or their events. ARGV: seen, verb, then of each run when it must have ended by, and itself;
-- where events go, also its version, and the digests of the reports of that version.
-- What the feed says of them goes when `purge` comes by.
local removed = 0

for i = 3, #ARGV, ARGV[2] == 'trim' and 4 or 2 do
  local by, run = tonumber(ARGV[i]), ARGV[i + 1]
  local row = read_row(run)
  if row and TERMINAL[word_of(row.status)] and row.ended ~= '-' and tonumber(row.ended) <= by then
    local trimmed = sub(row.kept, 1, 1) == '1'
    if ARGV[2] == 'remove' then
      -- Those of a trimmed run, too: a lease that outlived it may have written after that.
      call('UNLINK', LOG .. run, base .. ':marks:' .. run)
      for key in string.gmatch(row.keys, '[^,]+') do
        local text = call('HGET', JOBS, key .. ':' .. run)
        if text then
          unindex(run, key, parse(text))
          call('HDEL', JOBS, key .. ':' .. run)
        end
      end
      drop(LEASES, run)
      local tenant, id = match(run, '^([^/]+)/(.+)$')
      local labels = match(call('GET', START .. run) or '', '^%S+ (%S+)') or ''
      for label in string.gmatch(labels, '[^,]+=[^,]+') do
        drop(base .. ':label:' .. tenant .. ':' .. label, id)
      end
      relist(run, way_name(run, row.status, nil, row.flow), row.number, row.ended, nil, row.kept)
      local receipts = call('HGETALL', base .. ':receipts:' .. run)
      for at = 1, #receipts, 2 do list_receipt(run, receipts[at], parse_receipt(receipts[at + 1]), false) end
      call('UNLINK', RUN .. run, START .. run, base .. ':state:run:' .. run, base .. ':keys:run:' .. run,
        base .. ':receipts:' .. run, base .. ':receipt-ids:' .. run, base .. ':reports:' .. run)
      removed = removed + 1
    elseif not trimmed and row.version == ARGV[i + 2] then
      call('UNLINK', LOG .. run, base .. ':marks:' .. run)
      call('SET', base .. ':reports:' .. run, ARGV[i + 3])
      drop(ended_list(row.kept), run)
      row.kept = '1' .. sub(row.kept, 2)
      write_row(run, row)
      put(ended_list(row.kept), row.ended, run)
      removed = removed + 1
    end
  end
end
if removed > 0 then finish() end
return { counted(), format('%.0f', us), tostring(removed) }
