"""The profile of a local day and week, or of a year of daily rows, with dictionaries; see `profile_numba.py`."""

import math

DAY, WEEK, YEAR = 86_400, 604_800, 365.2425 * 86_400


class Profile:
    """Of rows `unit` seconds apart; `moment` is local time in seconds since 1970."""

    def __init__(self, unit):
        self.is_yearly = unit == DAY
        self.bins = 366 if self.is_yearly else min(round(DAY / unit), 1440)
        self.rows = 90 if self.is_yearly else 7 * self.bins
        self.day, self.last, self.week = {}, {}, {}
        self.level = self.error = self.count = 0
        self.errors, self.began, self.first, self.before = [0.0, 0.0], None, None, None

    def bin(self, moment):
        if self.is_yearly:
            return int(moment // DAY * DAY % YEAR * 366 / YEAR)
        return round(moment % DAY * self.bins / DAY) % self.bins

    def slot(self, moment):
        slots = 1 if self.is_yearly else min(self.bins, 48)
        return (moment // DAY + 3) % 7, int(moment % DAY * slots / DAY)

    def expected_day(self, moment):
        k, around = self.bin(moment), 7 if self.is_yearly else 0
        near = [self.day[i % self.bins] for i in range(k - around, k + around + 1) if i % self.bins in self.day]
        return sum(near) / len(near) if near else math.nan

    def share(self, moment):
        if moment - self.began < WEEK or not self.errors[0]:
            return 0.0
        return self.errors[0] ** 8 / (self.errors[0] ** 8 + self.errors[1] ** 8)

    def expected(self, moment):
        return self.expected_day(moment) + self.share(moment) * self.week.get(self.slot(moment), 0.0)

    def forecast(self, moment):
        return self.first + self.expected(moment) + self.level

    def add(self, moment, value, is_odd=False):
        if self.began is None:
            self.began, self.first = moment, value
        k, slot = self.bin(moment), self.slot(moment)
        if k == self.before:
            return
        self.before = k
        if is_odd and k not in self.day:
            return
        bound = 4 * self.error if self.count >= 20 else math.inf
        share, weekday, day = self.share(moment), self.week.get(slot, 0.0), self.expected_day(moment)
        rest = value - self.first - self.level
        self.learn_bin(k, rest - share * weekday, bound, moment)
        if math.isnan(day):
            return
        without = rest - day
        if weeks := (moment - self.began) // WEEK:
            for which in (0, 1):
                size = min(abs(without - which * weekday), bound)
                self.errors[which] += (size - self.errors[which]) / min(self.count + 1, self.rows)
        gain = max(0.25, 1 / (weeks + 1)) / max((1 if self.is_yearly else self.bins) / 48, 1)
        self.week[slot] = weekday + gain * min(max(without - weekday, -bound), bound)
        error = min(max(without - share * weekday, -bound), bound)
        self.count += 1
        self.error += (abs(error) - self.error) / min(self.count, self.rows)
        self.level += error / self.rows

    def learn_bin(self, k, own, bound, moment):
        if k not in self.day:
            self.day[k], self.last[k] = own, 0.0
            return
        error, last = own - self.day[k], self.last[k]
        if min(abs(error), abs(last)) > bound and error * last > 0:
            move = min(error, last, key=abs)
        else:
            cycles = (moment - self.began) // (YEAR if self.is_yearly else DAY)
            move = max(0.12, 1 / (cycles + 1)) * min(max(error, -bound), bound)
        self.day[k] += move
        self.last[k] = error - move
