-- Settle a batch of claims, in one call.
--
-- KEYS[i]     as in claim.lua
-- ARGV[1]     duplicate window, milliseconds: TTL of "done"
-- ARGV[2]     how long an attempt is kept, milliseconds
-- ARGV[3i]    token of the owner of KEYS[i]
-- ARGV[3i+1]  the end of the claim:
--               "done"   its row says CONSUMED: stored for any owner of the key, the row decides
--               "fail"   its failure is in the consume log: delete the key, if it is still ours
--               "back"   there was no attempt: take its number back, if the key is still ours;
--                        a doubt about an earlier owner stays
--               "renew"  the handler still runs: extend the lease, if the key is still ours
-- ARGV[3i+2]  lease of that claim, milliseconds, for "renew"
--
-- Returns one text: a digit for each key, separated by blanks. 1: it was done. 0: the owner no
-- longer owns the key.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers = {}

for i, key in ipairs(KEYS) do
  local token, fate = ARGV[3 * i], ARGV[3 * i + 1]
  if fate == 'done' then
    redis.call('SET', key, 'done', 'PX', ARGV[1])
    answers[i] = 1
  else
    local value = redis.call('GET', key) or ''
    local attempt, mark, owner = string.match(value, '^(%d+):%d+:(%??)(.*)$')
    if owner ~= token then
      answers[i] = 0
    else
      answers[i] = 1
      if fate == 'fail' then
        redis.call('DEL', key)
      elseif fate == 'back' then
        if tonumber(attempt) > 1 then
          redis.call('SET', key, (attempt - 1) .. ':0:' .. mark, 'KEEPTTL')
        else
          redis.call('DEL', key)
        end
      else
        local till = string.format('%.0f', now + tonumber(ARGV[3 * i + 2]))
        redis.call('SET', key, attempt .. ':' .. till .. ':' .. mark .. token, 'PX', ARGV[2])
      end
    end
  end
end
return table.concat(answers, ' ')
