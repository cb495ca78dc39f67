--[[
report: keep the latest progress per task, and the furthest it has been in its run.

  ARGV[1] (msgpack) reports, each {job, entry, token, task, stage, run, peak, body, current, total, percent, at, message}
  returns nothing

A task's progress is kept as "run peak body". What carries a superseded token is dropped.
]]
local moved = {}
for _, r in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job, entry, token, task, stage, run, peak, body, current, total, percent, at, message = unpack(r)
  if is_held('holders', entry, token) then
    local key = P .. 'job:' .. job .. ':progress'
    local was_run, was_peak = string.match(call('HGET', key, task) or '', '^(%S+) (%S+) ')
    if was_run == run and tonumber(was_peak) > tonumber(peak) then peak = was_peak end
    if not was_run then call('HSET', P .. 'job:' .. job, 'has_progress', 1) end
    call('HSET', key, task, run .. ' ' .. peak .. ' ' .. body)
    local readable = P .. 'job:' .. job .. ':stage:' .. stage
    if call('HEXISTS', readable, 'elements') == 0 then -- of several elements the count of the finished is its progress
      call('HSET', readable, 'current', current, 'total', total, 'progress', percent, 'updated_at', at)
    end
    announce(job, message)
    moved[#moved + 1] = job
  end
end
flush()
if #moved > 0 then tell(moved) end
